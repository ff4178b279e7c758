"""Layers on unequal nodes as a plan: solved, stated again from its own layers, and checked."""

from collections.abc import Iterator, Sequence

from planner.errors import Conflict, Infeasible, PlannerError
from planner.kinds.place.decision import PlaceDecision
from planner.kinds.place.envelope import bound_again, certificate, place_envelope
from planner.kinds.place.layers.setting import LayersSetting, read_setting
from planner.kinds.place.left_out import pools_without
from planner.plan.blocks import block_on
from planner.plan.findings import Finding
from planner.plan.restated import LeftOut, Restated, unproven
from planner.plan.schema import (
    Axis,
    Block,
    Engine,
    Envelope,
    Evidence,
    Memory,
    Objective,
    Parallelism,
    Prediction,
    Role,
    Route,
)
from planner.problem.resolve import Resolved
from planner.solvers.placement.layers.flow import longest_chain, max_flow
from planner.solvers.placement.layers.place import SOLVER, best_layers, layers_bound
from planner.solvers.placement.layers.problem import Held

METRIC = "tokens_per_s_per_gpu"
OPEN = "the bound lets every layer have holders of its own"
TRACE = 1e-9  # of the flow: less is none
BOUND = LeftOut("certificate.bound", "whether no layers let more tokens through")
UNMEASURED = "no measurement of pipelines over unequal nodes is behind these prices"
ASSUMPTIONS = (
    "a node computes its layers with all its GPUs, prompts and output tokens in turn, and is never idle",
    "as many micro-batches are in flight as there are stages, and nodes keep the caches of all of them",
    "stages are the most layers of nodes that follow one another, whether requests go that way or not",
    "what joins two pools is shared evenly by their pairs of nodes",
)


def solve(resolved: Resolved) -> Envelope:
    """The layers with most tokens a second, over every number of stages up to that of the options.

    Raises Infeasible where no stages hold the model.
    """
    setting = read_setting(resolved)
    best: tuple[float, Held] | None = None
    too_few: PlannerError | None = None
    for stages in range(1, min(setting.options.max_stages, len(setting.nodes), setting.arch.num_layers) + 1):
        try:
            problem = setting.problem(stages)
        except PlannerError as error:  # more stages keep more micro-batches, beside fewer layers
            too_few = too_few or error
            continue
        plan, _ = best_layers(problem, 0.0 if best is None else best[0])
        if plan is not None and (best is None or plan[0] > best[0]):
            best = plan[0], plan[1].held
    if best is None and too_few is not None:
        raise too_few.at(resolved.where(("cluster", "pools")))
    if best is None:
        conflict: list[Conflict] = [
            {"limit": f"max_stages = {setting.options.max_stages}", "nearest": "more stages"},
            {"limit": f"{setting.gpus} GPUs", "nearest": "more of them, or smaller weights"},
        ]
        raise Infeasible(conflict, proved=most_tokens_per_s(setting, 0.0) == 0.0)
    rate, _ = max_flow(setting.problem(_stages(best[1])), best[1])
    return envelope(setting, best[1], most_tokens_per_s(setting, rate) / setting.gpus)


def most_tokens_per_s(setting: LayersSetting, above: float) -> float:
    """No layers over any number of stages up to that of the options let more through; `above` is what some do."""
    bound = above
    for stages in range(1, min(setting.options.max_stages, len(setting.nodes), setting.arch.num_layers) + 1):
        try:
            problem = setting.problem(stages)
        except PlannerError:  # all nodes together hold too few layers
            continue
        bound = max(bound, layers_bound(problem, bound))
    return bound


def restate(setting: LayersSetting, stated: Envelope, decision: PlaceDecision) -> Restated:
    """The plan of the layers that the roles hold; raises PlannerError for layers that no nodes of the problem hold."""
    made = envelope(setting, held_of(setting, decision), stated.certificate.bound)
    if stated.certificate.bound is None:
        return Restated(made.model_copy(update={"certificate": unproven(made.certificate.objective)}))
    return Restated(made, (BOUND,))


def prove(setting: LayersSetting, stated: Envelope) -> Iterator[Finding]:
    """Whether the bound is that of the problem, over every number of stages."""
    value = stated.certificate.objective.value
    if value is not None:
        again = most_tokens_per_s(setting, value * setting.gpus) / setting.gpus
        yield bound_again(stated.certificate, again, "its nodes")


def held_of(setting: LayersSetting, decision: PlaceDecision) -> Held:
    """The layers of every node, by the roles; raises PlannerError for nodes that are not."""
    names = _names(setting)
    held: list[tuple[int, int] | None] = [None] * len(names)
    for role in decision.roles:
        first, number = (role.limits.get(name) for name in ("first_layer", "num_layers"))
        if role.name not in names or not isinstance(first, int) or not isinstance(number, int):
            what = f"`{role.name}` is no node with layers"
            raise PlannerError(what, where="decision.roles", hint=f"nodes are {names[0]} to {names[-1]}")
        held[names.index(role.name)] = (first, first + number)
    return tuple(held)


def envelope(setting: LayersSetting, held: Held, bound: float | None) -> Envelope:
    """The plan of what every node holds; nodes without flow are left out."""
    resolved = setting.resolved
    stages = _stages(held)
    problem = setting.problem(stages)
    rate, flow = max_flow(problem, held)
    if not rate:
        raise PlannerError("no request passes through all layers", where="decision.roles", hint="solve again")
    used = [i for i in range(len(held)) if sum(tokens for (a, _), tokens in flow.items() if a == i) > TRACE * rate]
    value = rate / setting.gpus
    return place_envelope(
        resolved,
        PlaceDecision(
            roles=tuple(_role(setting, i, held, stages) for i in used),
            placement=tuple(_block(setting, i) for i in used),
            routing=tuple(_routes(setting, flow, rate)),
        ),
        (
            Prediction(metric=METRIC, value=value),
            Prediction(metric="output_tokens_per_s", value=rate),
            Prediction(metric="gpus", value=float(sum(setting.nodes[i].tp for i in used))),
        ),
        certificate(
            "no layers on these nodes, over as many stages at most, let more tokens through{bound}, under the stated "
            "prices",
            Objective(metric=METRIC, sense="maximize", value=value),
            bound,
            OPEN,
            {"stages": [*range(1, setting.options.max_stages + 1)], "layers of a node": ["every span"]},
            setting.options.max_stages,
        ),
        solver=SOLVER,
        evidence=Evidence(basis={"analytical": 1.0}, notes=(UNMEASURED,)),
        assumptions=ASSUMPTIONS,
        calibration=setting.calibration,
    )


def check(decision: PlaceDecision, layers: int | None) -> Iterator[Finding]:
    """Every way of the requests goes through all layers once, in order."""
    spans = {
        role.name: (int(role.limits.get("first_layer", 0)), int(role.limits.get("num_layers", 0)))
        for role in decision.roles
    }
    goes_on = {route.source for route in decision.routing if route.source is not None}
    for route in decision.routing:
        first, _ = spans[route.to]
        before = 0 if route.source is None else sum(spans[route.source])
        what = f"requests come to layer {first} after {before} layers"
        hint = "send requests on to nodes that hold the layers that follow"
        yield Finding("place.way", first == before, what, f"routing.{route.to}", hint)
    for name, (first, number) in spans.items():
        if name not in goes_on and layers is not None:
            what = f"requests leave after {first + number} of {layers} layers"
            hint = "let the last nodes hold the last layers"
            yield Finding("place.way", first + number == layers, what, f"roles.{name}", hint)


def _stages(held: Held) -> int:
    """Stages that a request passes at most: the longest chain of spans that follow one another."""
    return round(longest_chain({span: 1.0 for span in held if span is not None})) or 1


def _names(setting: LayersSetting) -> list[str]:
    pools = (pool for pool in setting.resolved.pools if pool.name not in pools_without(setting.resolved))
    return [f"{pool.name}-{node}" for pool in pools for node in pool.healthy_nodes]


def _role(setting: LayersSetting, index: int, held: Held, stages: int) -> Role:
    node, span, engine = setting.nodes[index], held[index], setting.resolved.problem.engine
    assert span is not None
    share = (span[1] - span[0]) / setting.arch.num_layers
    batch = node.batch(share, stages)
    return Role(
        name=_names(setting)[index],
        function="stage",
        model=setting.workload.model,
        engine=Engine(name=engine.name, version=engine.version),
        pool=node.pool.name,
        replicas=1,
        parallelism=Parallelism(tp=node.tp),
        limits={"first_layer": span[0], "num_layers": span[1] - span[0], "max_batch": batch},
        memory=Memory(
            weights_bytes=node.weights_bytes * share,
            kv_cache_bytes=batch * stages * node.cache_bytes * share,
            workspace_bytes=node.beside_bytes,
            capacity_bytes=node.room_bytes,
        ),
    )


def _block(setting: LayersSetting, index: int) -> Block:
    node, name = setting.nodes[index], _names(setting)[index]
    number = int(name.rpartition("-")[2])
    devices = range(number * node.pool.node.num_gpus, (number + 1) * node.pool.node.num_gpus)
    axes = (Axis(name="tp", size=node.tp, stride=1),) if node.tp > 1 else ()
    return block_on([*devices], name, node.pool.name, axes)


def _routes(setting: LayersSetting, flow: dict[tuple[int, int], float], rate: float) -> Iterator[Route]:
    """Shares of all requests, from node to node as the maximum flow sends them."""
    names: Sequence[str] = _names(setting)
    for (a, b), tokens in sorted(flow.items()):
        if b < len(names) and tokens > TRACE * rate:
            source = None if a < 0 else names[a]
            yield Route(workload=setting.workload.spec.name, to=names[b], source=source, share=min(tokens / rate, 1.0))
