"""Groups of GPUs that engines of several models share, as instances of serving scripts: one for each model of a group.

Engines that hold LoRA adapters are instances of their own, and `routes.json` names the engines of every adapter.

Engines of a group stand on the same GPUs, each with its own part of their memory, of which vLLM measures at its start
what is left; so the engines of a node are to be started one after the other.
"""

import json

from planner.emit.serving.routes import Json, engine_name, routing_table
from planner.emit.serving.scene import API_PORT, ServingEngine
from planner.emit.serving.scripts import emit_serving, read_scene
from planner.errors import PlannerError
from planner.kinds.place.decision import Host, PlaceDecision, PlaceOptions
from planner.plan.schema import Block, Decision, Envelope, Role
from planner.problem.recorded import recorded_options, recorded_problem

SHARING = ("vllm",)
"""Engines whose flags give one its part of a device beside others."""
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # `--max-lora-rank` of vLLM 0.33 (vllm/config/lora.py)


def emit_groups(envelope: Envelope, decision: Decision, *, engine: ServingEngine) -> dict[str, str]:
    """Scripts of every node, the router of every model with several engines, and `routes.json`.

    Raises PlannerError for what no engine here starts.
    """
    assert isinstance(decision, PlaceDecision)
    engines = engines_of(envelope, decision)
    routes = routes_on_nodes(envelope, decision, engines, engine)
    return {**emit_serving(envelope, engines, engine=engine), "routes.json": routes}


def engines_of(envelope: Envelope, decision: PlaceDecision) -> Decision:
    """A role for each engine; raises PlannerError for groups that take requests one by one, layers and mixes."""
    function = decision.roles[0].function
    if function == "stage":
        raise PlannerError(
            "nodes hold unequal numbers of layers with routes between them, and engines here send requests through one "
            "row of equal nodes",
            where="decision.roles",
            hint="write the layers and the weights of routes with `--target routes` for an engine that takes them",
        )
    if function == "mix":
        raise PlannerError(
            "a mix counts instances by measured rates, and says nothing of their engines",
            where="decision.roles",
            hint="start instances as they were when their rates were measured; `--target routes` writes their shares",
        )
    return with_adapters(envelope, decision) if decision.adapters else as_engines(envelope, decision)


def routes_on_nodes(envelope: Envelope, decision: PlaceDecision, engines: Decision, engine: ServingEngine) -> str:
    """The routing table with the node and port of every engine."""
    scene, _ = read_scene(envelope, engines, (), engine)
    where: dict[str, Json] = {
        each.role.name: {
            "checkpoint": scene.model_name(each),
            "node": scene.node(each.head).title,
            "port": API_PORT + each.head.slot,
        }
        for each in scene.instances
    }
    return routing_table(envelope, decision, where, {})


def as_engines(envelope: Envelope, decision: PlaceDecision) -> Decision:
    """A role for each model of each group, on the devices of the group and with a part of their memory."""
    problem = recorded_problem(envelope.inputs)
    options = recorded_options(problem, PlaceOptions)
    if problem is None or options is None:
        raise PlannerError("is no valid problem", where="inputs", hint="check the plan: `planner check`")
    if not options.batching:
        raise PlannerError(
            "engines batch requests, and the groups of the plan take them one by one",
            where="inputs.options.batching",
            hint="solve without `batching: false`",
        )
    groups = {role.name: role for role in decision.roles}
    roles, placement = list[Role](), list[Block]()
    for host in decision.hosts:
        group, name = groups[host.group], engine_name(host.group, host.model)
        limits: dict[str, float | int | str] = {
            "max_batch": host.max_batch,
            "chunk_tokens": options.chunk_tokens,
            "kv_cache_bytes": int(host.kv_cache_bytes),
            "memory_utilisation": round(problem.engine.memory_utilisation * _part(decision, group, host), 4),
        }
        own = {"name": name, "function": "colocated", "model": host.model, "limits": limits}
        roles.append(group.model_copy(update=own))
        blocks = (block for block in decision.placement if block.role == host.group)
        placement += [block.model_copy(update={"role": name}) for block in blocks]
    return Decision(roles=tuple(roles), placement=tuple(placement), router_policy=decision.router_policy)


def with_adapters(envelope: Envelope, decision: PlaceDecision) -> Decision:
    """A role for each engine, whose limits name the adapters that it loads and where from."""
    problem = recorded_problem(envelope.inputs)
    options = recorded_options(problem, PlaceOptions)
    if options is None or options.lora is None:
        raise PlannerError("is no problem with adapters", where="inputs", hint="check the plan: `planner check`")
    merged = next((host for host in decision.adapters if host.merged), None)
    if merged is not None:
        raise PlannerError(
            f"`{merged.engine}` runs merged with `{merged.adapter}`, and engines load adapters beside their weights",
            where="decision.adapters",
            hint="solve with `options.lora.merged=false`, or merge that checkpoint yourself",
        )
    rank = next((rank for rank in RANKS if rank >= options.lora.rank), None)
    if rank is None:
        what, where = f"adapters of rank {options.lora.rank}", "inputs.options.lora.rank"
        raise PlannerError(what, where=where, hint=f"engines load ranks up to {RANKS[-1]}")
    roles = []
    for role in decision.roles:
        here = [host.adapter for host in decision.adapters if host.engine == role.name]
        sources = {name: options.lora.adapters[name].checkpoint or name for name in here}
        limits = {
            "max_batch": role.limits["max_batch"],
            "chunk_tokens": options.chunk_tokens,
            "max_loras": options.lora.slots,
            "max_lora_rank": rank,
            "lora_modules": json.dumps([{"name": name, "path": path} for name, path in sources.items()]),
        }
        roles.append(role.model_copy(update={"function": "colocated", "limits": limits}))
    return Decision(roles=tuple(roles), placement=decision.placement)


def _part(decision: PlaceDecision, group: Role, host: Host) -> float:
    """Of what engines may use of a device: an engine's own weights and cache, and an equal part of all the rest."""
    memory = group.memory
    if memory is None:
        where, hint = f"decision.roles.{group.name}", "check the plan: `planner check`"
        raise PlannerError("states no memory", where=where, hint=hint)
    number = sum(other.group == group.name for other in decision.hosts)
    rest = memory.capacity_bytes - memory.weights_bytes - memory.kv_cache_bytes
    return (host.weights_bytes + host.kv_cache_bytes + rest / number) / memory.capacity_bytes
