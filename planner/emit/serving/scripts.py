"""Shared parts of serving launch scripts: one script a node, router commands, flags that engines call alike."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from planner.emit.documents import manifest, plan_title
from planner.emit.nodes import Node, NodeId, read_cluster
from planner.emit.refusals import raise_first
from planner.emit.registry import LayoutPlan
from planner.emit.serving.checkpoints import load_quantisation
from planner.emit.serving.groups import connectors_of, router_groups
from planner.emit.serving.instances import EngineInstance, read_instances
from planner.emit.serving.placed_experts import place_experts
from planner.emit.serving.scene import (
    API_PORT,
    FUNCTIONS,
    MAX_SLOTS,
    METRICS_PORT,
    ROUTER_PORT,
    RouterGroup,
    Scene,
    ServingEngine,
    limit,
)
from planner.emit.shell import Command, Flag, Word, script, word
from planner.errors import PlannerError, require_known
from planner.plan.schema import Decision, Envelope

Settle = Callable[[list[EngineInstance]], tuple[list[EngineInstance], dict[NodeId, Node]]]
_POLICY = "power-of-two"  # of plans that state none: of two instances the one with fewer requests
LIMITS = (
    *("max_context_tokens", "max_batch", "chunk_tokens", "draft_tokens", "micro_batches"),
    *("pieces", "redundant_experts", "async_scheduling", "prefix_caching", "host_cache_bytes"),
    *("ssd_cache_bytes", "pool_cache_bytes", "prefix_store"),
)
"""What roles of serving plans are limited by."""
SIDES = {"attention": "attention without feed-forward layers", "ffn": "feed-forward layers alone"}


def emit_serving(
    envelope: Envelope, decision: Decision, layouts: Sequence[LayoutPlan] = (), *, engine: ServingEngine
) -> dict[str, str]:
    """`launch-node-NN.sh` for every node of the plan, and `launch-router.sh` where instances share a load.

    Files that commands read, of stores and of experts' places, lie beside the scripts on every node.
    """
    scene, groups = read_scene(envelope, decision, layouts, engine)
    beside = {name: text for instance in scene.instances for name, text in told_files(engine, scene, instance).items()}
    header = (
        plan_title(envelope),
        f"Flags of {engine.name} {engine.version}; addresses: set NODE_00, NODE_01, ... to replace those below.",
    )
    files = {
        f"launch-node-{node.number}.sh": script(
            (*header, *_node_header(scene, node, groups), *_expert_header(scene, engine), *_store_header(beside)),
            *node_parts(scene, engine, place),
            beside=bool(beside or scene.experts),
        )
        for place, node in scene.nodes.items()
    }
    routed = [group for group in groups if group.needs_router]
    if routed:
        files["launch-router.sh"] = script(
            (*header, *_router_header(routed, decision)), *_router_parts(scene, engine, routed, decision.router_policy)
        )
    return files | beside | {experts.file: experts.text for experts in scene.experts.values()}


def read_scene(
    envelope: Envelope,
    decision: Decision,
    layouts: Sequence[LayoutPlan],
    engine: ServingEngine,
    settle: Settle | None = None,
) -> tuple[Scene, list[RouterGroup]]:
    """The instances of a serving plan with their addresses and connectors, and the routers before them.

    `settle` moves the instances from the plan's nodes to other places. Raises PlannerError for whatever `engine` cannot
    start.
    """
    cluster = read_cluster(envelope)
    _refuse_foreign_functions(decision, engine)
    _refuse_other_engine(decision, engine)
    if envelope.kind == "serve":
        _refuse_unknown_limits(decision)
    _refuse_reordered(decision, engine)
    instances = read_instances(decision, cluster, engine.rank_order)
    if settle is None:
        nodes = cluster.nodes({part.place for instance in instances for part in instance.parts})
    else:
        instances, nodes = settle(instances)
    placed = place_experts(engine.description.target, cluster.problem, instances, layouts)
    scene = Scene(cluster, instances, nodes, placed)
    _refuse_inexpressible(instances, engine)
    groups = router_groups(scene, decision, engine)
    return replace(scene, connectors=connectors_of(scene, groups, engine)), groups


def _refuse_reordered(decision: Decision, engine: ServingEngine) -> None:
    """No engine of these has a feedback queue, or shares its KV cache with others to join for a prefill."""
    raise_first(
        (
            decision.queueing not in (None, "fcfs"),
            PlannerError(
                f"{engine.name} has no feedback queue, and the plan's limits are kept with one",
                where="queueing",
                hint="solve with `options: {queueing: [fcfs]}`",
            ),
        ),
        (
            decision.elastic is not None,
            PlannerError(
                f"engines of {engine.name} share no KV cache, and the plan's limits are kept with a shared one",
                where="elastic",
                hint="solve with `options: {elastic: [false]}`",
            ),
        ),
    )


def told_files(
    engine: ServingEngine, scene: Scene, instance: EngineInstance, header: Sequence[str] = ()
) -> dict[str, str]:
    """By name, the settings that an instance's commands read from files: JSON, or YAML below the header."""
    told = {} if engine.settings is None else engine.settings(scene, instance)
    return {
        name: f"{json.dumps(data, indent=2)}\n" if name.endswith(".json") else manifest(header, [data])
        for name, data in told.items()
    }


def _store_header(beside: Iterable[str]) -> Iterator[str]:
    for name in beside:
        yield f"{name}, beside this script, says where the store of prefixes answers; start it first."


def _expert_header(scene: Scene, engine: ServingEngine) -> Iterator[str]:
    for role, experts in scene.experts.items():
        yield f'Experts of role "{role}" lie as in {experts.says}, beside this script, from the start to the end.'
    if scene.experts and engine.expert_note:
        yield engine.expert_note


def experts_spread(instance: EngineInstance) -> bool:
    """Whether the role lays experts on its ranks; one with moe_tp = ep = 1 on several ranks is that of a dense model.

    Raises PlannerError where experts would lie on other ranks than attention.
    """
    parallelism = instance.role.parallelism
    experts = parallelism.moe_tp * parallelism.ep
    attention = parallelism.tp * parallelism.dp
    if experts == 1:
        return False
    if experts != attention:
        raise instance.refuse(
            f"experts lie on moe_tp {parallelism.moe_tp} x ep {parallelism.ep} = {experts} ranks, attention on "
            f"tp {parallelism.tp} x dp {parallelism.dp} = {attention}",
            "plan with moe_tp x ep = tp x dp",
        )
    return True


def two_batches(instance: EngineInstance, engine: str) -> bool:
    """Whether steps are cut in halves that hide each other's exchange between experts.

    Raises PlannerError where there is no such exchange, and for other numbers of micro-batches.
    """
    parallelism, turns = instance.role.parallelism, limit(instance, "micro_batches") or 1
    if turns == 1:
        return False
    if turns > 2 or parallelism.dp == 1 or not experts_spread(instance) or parallelism.moe_tp > 1:
        raise instance.refuse(
            f"{engine} cuts steps in two batches, where whole experts lie on data-parallel ranks; this role has "
            f"micro_batches {turns}, dp {parallelism.dp} and moe_tp {parallelism.moe_tp} x ep {parallelism.ep}",
            'plan with `overlap: ["off"]`, or with ep = tp x dp',
        )
    return True


def format_flags(
    scene: Scene, instance: EngineInstance, engine: str, quantisations: Mapping[str, str], kv_caches: dict[str, str]
) -> Iterator[Flag]:
    """Flags that both engines call alike: formats of weights, activations and KV cache, where they must be told."""
    model = scene.model(instance)
    where = f"inputs.models.{scene.model_key(instance)}.weights"
    quantisation = load_quantisation(model, quantisations, engine, where)
    if quantisation is not None:
        yield "--quantization", word(quantisation)
    if "fp16" in (model.weights, model.kv_cache):
        yield "--dtype", word("float16")
    if model.kv_cache in kv_caches:
        yield "--kv-cache-dtype", word(kv_caches[model.kv_cache])


def require_equal_parts(instance: EngineInstance, engine: str) -> None:
    """Raises PlannerError where an instance takes more GPUs on one of its nodes than on another."""
    sizes = sorted({len(part.gpus) for part in instance.parts})
    if len(sizes) > 1:
        raise instance.refuse(
            f"{engine} spreads an instance evenly over its nodes, this one takes {sizes[0]} and {sizes[-1]} GPUs",
            "place the same number of ranks on every node",
        )


def _refuse_other_engine(decision: Decision, engine: ServingEngine) -> None:
    """Raises PlannerError for a role whose steps were priced for another engine; a plan by hand may name none."""
    for role in decision.roles:
        version = None if role.engine is None else role.engine.version
        if role.engine is not None and role.engine.name == engine.key and not engine.release.covers(version):
            raise PlannerError(
                f"role `{role.name}` was planned for {engine.name} {version}, and these are scripts of "
                f"{engine.release.name}, the nearest that they are written for",
                where=f"decision.roles.{role.name}.engine",
                hint=f"solve with `engine.version={engine.release.read}`, or leave it out; a launch of {version} that "
                "runs is changed in place by `planner audit`",
            )
        if role.engine is not None and role.engine.name != engine.key:
            raise PlannerError(
                f"role `{role.name}` was planned for {role.engine.name}, and these are scripts of {engine.name}",
                where=f"decision.roles.{role.name}.engine",
                hint=f"solve again with `engine: {{name: {engine.key}}}`",
            )


def _refuse_unknown_limits(decision: Decision) -> None:
    """Raises PlannerError for limits that no flag is made of, which would be lost without a word."""
    for role in decision.roles:
        for name in role.limits:
            require_known("limit", name, LIMITS, where=f"decision.roles.{role.name}.limits")


def _refuse_foreign_functions(decision: Decision, engine: ServingEngine) -> None:
    for role in decision.roles:
        if role.function in SIDES:
            what = f"role `{role.name}` runs {SIDES[role.function]}"
            what += f", and {engine.name} {engine.version} starts no such role"
            raise PlannerError(
                what,
                where="decision.roles",
                hint=(
                    "leave `attention-ffn` out of `options.modes`; docs/attention-ffn.md names ways to start it by hand"
                ),
            )
        if role.function not in FUNCTIONS:
            raise PlannerError(
                f"role `{role.name}` has the function `{role.function}`",
                where="decision.roles",
                hint=f"serving roles are {', '.join(FUNCTIONS)}",
            )


def _refuse_inexpressible(instances: Sequence[EngineInstance], engine: ServingEngine) -> None:
    """Raises PlannerError for instances that no script here starts."""
    for instance in instances:
        parallelism = instance.role.parallelism
        if any(part.slot >= MAX_SLOTS for part in instance.parts):
            raise instance.refuse(
                f"more than {MAX_SLOTS} instances stand on one node and would share ports", "plan larger instances"
            )
        if parallelism.cp > 1 or parallelism.vpp > 1:
            raise instance.refuse(
                f"cp {parallelism.cp} and vpp {parallelism.vpp} have no launch flags for {engine.name} here",
                "plan with cp 1 and vpp 1",
            )


def _node_header(scene: Scene, node: Node, groups: Sequence[RouterGroup]) -> Iterator[str]:
    yield f"Run this on {node.title}: node {node.number} of {len(scene.nodes)} that the plan uses."
    if len(scene.nodes) > 1:
        yield "Start the scripts of all nodes within minutes of each other."
    if any(group.needs_router for group in groups):
        yield "Then start launch-router.sh once."
    for group in groups:
        if not group.needs_router:
            head = group.colocated[0].head
            yield f'Clients of "{group.model}" talk to port {API_PORT + head.slot} of node {scene.node(head).number}.'


def node_parts(scene: Scene, engine: ServingEngine, place: NodeId) -> tuple[list[tuple[str, Word]], list[Command]]:
    """The addresses and the commands of one node."""
    commands, used = [], {place}
    for instance in scene.instances:
        for index, part in enumerate(instance.parts):
            if part.place == place:
                commands.append(engine.launch(scene, instance, index))
                used.add(instance.head.place)
    return _addresses(scene, used), commands


def _router_header(groups: Sequence[RouterGroup], decision: Decision) -> Iterator[str]:
    """Routers balance by load inside a group; shares between groups are for whoever calls them."""
    yield "Run this anywhere that reaches the nodes, once their scripts answer; clients talk to the routers:"
    for group in groups:
        yield f"  port {ROUTER_PORT + group.index}: {group.title}"
    yield from planned_shares(decision)


def clients_share(group: RouterGroup, places: str, policy: str | None) -> str:
    """Where clients send to instances that run whole requests, and how: no program of the engine chooses."""
    balanced = policy is not None and len(group.colocated) > 1
    return f'Clients of "{group.model}" share their requests over {places}{f", by {policy}" if balanced else ""}.'


def planned_shares(decision: Decision) -> Iterator[str]:
    """What clients send to each role that answers them first."""
    for route in decision.routing:
        if route.source is None:
            yield f'Planned share of workload "{route.workload}" to role "{route.to}": {route.share:.4g}'


def _router_parts(
    scene: Scene, engine: ServingEngine, groups: Sequence[RouterGroup], policy: str | None
) -> tuple[list[tuple[str, Word]], list[Command]]:
    """The addresses and the commands of the routers."""
    heads = {instance.head.place for group in groups for instance in group.instances}
    return _addresses(scene, heads), [router_command(scene, engine, group, policy) for group in groups]


def router_command(scene: Scene, engine: ServingEngine, group: RouterGroup, policy: str | None) -> Command:
    """What starts the router of a group; of plans that state no policy, with one of ours."""
    named = (policy or _POLICY).replace("-", "_")
    engine.release.router(str(engine.router[-1]), named)
    if group.prefill:
        workers: tuple[Flag, ...] = (
            (engine.disaggregated, None),
            *(("--prefill", engine.prefill_address(scene, instance)) for instance in group.prefill),
            *(("--decode", scene.url(instance)) for instance in group.decode),
        )
    else:
        workers = (("--worker-urls", tuple(map(scene.url, group.colocated))),)
    return Command(
        title=group.title,
        program=engine.router,
        flags=(
            ("--host", word("0.0.0.0")),
            ("--port", word(ROUTER_PORT + group.index)),
            ("--prometheus-port", word(METRICS_PORT + group.index)),
            ("--policy", word(named)),
            *workers,
        ),
    )


def _addresses(scene: Scene, places: set[NodeId]) -> list[tuple[str, Word]]:
    return [(scene.nodes[place].variable, scene.nodes[place].default) for place in sorted(places)]
