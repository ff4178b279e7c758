"""Builds the fleet of a serving plan: one engine for every attention (data-parallel) rank of every replica.

A rank with pp stages is one engine with a pipeline: one scheduler, one queue, one KV cache, and up to pp batches in
flight. Ranks that share experts make their steps together.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from planner.costs.rates.calibration import Calibration, load_calibration
from planner.costs.rates.pricer import profile_paths
from planner.costs.serving.speculation import Drafter, drafter_of
from planner.errors import PlannerError
from planner.models.architecture import Architecture
from planner.plan.schema import Decision, Envelope
from planner.plan.sides import ffn_roles, without_ffn
from planner.problem.recorded import INPUTS, recorded_problem, required_model, tables_at_hand
from planner.problem.resolve import resolve_pool
from planner.problem.schema import Problem
from planner.problem.speculation import SpeculationSpec
from planner.simulate.fleet.instances import Fleet, Instance, MemoryTier, RequestPath
from planner.simulate.fleet.operation import PoolLink
from planner.simulate.fleet.operation_spec import ElasticSpec, OperationSpec
from planner.simulate.fleet.shared_grids import SharedGrids
from planner.simulate.plans.elastic import elastic_fleet, require_equal_engines
from planner.simulate.plans.engines import engines_of, moved_bytes, together
from planner.simulate.plans.paths import LEAST_SHARE, RolePaths, paths_of
from planner.simulate.plans.setting import FleetSetting, Policies
from planner.simulate.requests.stream import Requests

DEFAULT_ROUTING = "least-loaded"  # of plans that state no policy


@dataclass(frozen=True, slots=True)
class PlannedFleet:
    """The fleet, and which role each of its instances belongs to."""

    fleet: Fleet
    role_of_instance: tuple[str, ...]
    gpus: int
    problem: Problem
    notes: tuple[str, ...]
    model_of_workload: tuple[int, ...]  # by which requests go where the fleet has no paths


def serving_problem(envelope: Envelope) -> Problem:
    """The problem that a serving plan was solved from; raises PlannerError for plans of another kind."""
    problem = recorded_problem(envelope.inputs)
    if envelope.kind == "serve" and problem is None:
        raise PlannerError("the plan holds no valid problem", hint="check it: `planner check PLAN`")
    if envelope.kind != "serve" or problem is None:
        raise PlannerError(
            f"a plan of kind `{envelope.kind}` serves no requests that are simulated alone",
            where="kind",
            hint="give a plan of kind serve; `planner check PLAN --level proof` derives the figures of others again, "
            "and `planner report PLAN` draws what they do over time",
        )
    return problem


def fleet_of_plan(
    envelope: Envelope,
    decision: Decision,
    requests: Requests,
    policies: Policies,
    *,
    profiles: Sequence[str] = (),
    calibration: str | None = None,
    grids: SharedGrids | None = None,
) -> PlannedFleet:
    """The fleet of a serving plan, with step times for requests as long as these, or those of `grids` of its problem.

    Raises PlannerError for plans that serve no requests, for traces where the plan serves several models, and for
    calibration files that the plan does not name.
    """
    problem = serving_problem(envelope)
    policies = _as_planned(policies, decision)
    gpus = sum(role.replicas * role.parallelism.devices for role in decision.roles)
    sides, decision = ffn_roles(decision), without_ffn(decision)
    if policies.operation is not None and policies.operation.elastic is not None:
        require_equal_engines(decision.roles)
    tables = tables_at_hand(envelope.digests.profiles, profiles)
    settings = _settings(problem, decision, requests, policies, _calibration(problem, calibration), tables)
    spread_gpus = envelope.evidence.spread_gpus
    settings = {
        model: replace(setting, spread_gpus=spread_gpus, grids=grids or setting.grids)
        for model, setting in settings.items()
    }
    instances: list[Instance] = []
    names: list[str] = []
    groups: list[int] = []
    leaders: dict[str, list[list[int]]] = {}
    paths = _role_paths(decision, problem, requests, policies)
    for role in decision.roles:
        setting = settings[str(role.model)]
        number = paths.number_of_role[role.name] if paths else list(settings).index(str(role.model))
        engines = [replace(engine, model=number) for engine in engines_of(role, setting, sides.get(role.name))]
        size = together(role, setting.arch)
        each = len(engines) // role.replicas
        starts = range(len(instances), len(instances) + len(engines), each)
        leaders[role.name] = [list(range(start, start + each, size)) for start in starts]
        groups += [size] * (len(engines) // size)
        instances += engines
        names += [role.name] * len(engines)
    leaders |= {ffn.name: leaders[name] for name, ffn in sides.items()}  # neither side works without the other
    fleet = fleet_of_engines(instances, tuple(settings.values()), groups=groups, paths=paths.paths if paths else ())
    fleet = replace(fleet, tiers=_tiers(decision, policies))
    return PlannedFleet(
        _operated(fleet, policies.operation or OperationSpec(), leaders, tuple(settings.values())),
        tuple(names),
        gpus,
        problem,
        tuple(_notes(decision, paths, [workload.name for workload in problem.workloads])),
        tuple(list(settings).index(name) if name in settings else -1 for name in _models(problem)),
    )


def _as_planned(policies: Policies, decision: Decision) -> Policies:
    """The policies with those of the plan where they state none; elastic engines take requests where they are least."""
    operation = policies.operation
    if decision.elastic and (operation is None or operation.elastic is None):
        operation = (operation or OperationSpec()).model_copy(update={"elastic": ElasticSpec()})
    elastic = operation is not None and operation.elastic is not None
    routing = None if elastic else decision.router_policy
    return replace(
        policies,
        routing=policies.routing or routing,
        decode_routing=policies.decode_routing or routing,
        queueing=policies.queueing or decision.queueing or "fcfs",
        operation=operation,
    )


def _models(problem: Problem) -> list[str]:
    """The model of each workload."""
    return [workload.model or next(iter(problem.models)) for workload in problem.workloads]


def _settings(
    problem: Problem,
    decision: Decision,
    requests: Requests,
    policies: Policies,
    calibration: Calibration,
    profiles: Sequence[str],
) -> dict[str, FleetSetting]:
    """By model, with the requests of its own workloads."""
    models = list(dict.fromkeys(str(role.model) for role in decision.roles))
    if len(models) > 1 and requests.workload is None:
        raise PlannerError(
            "the plan serves several models, and a trace does not say which each request is for",
            hint="leave the trace out: the plan's own workloads are simulated",
        )
    pools = {spec.label: resolve_pool(spec, index, INPUTS) for index, spec in enumerate(problem.cluster.pools)}
    crossing = len({role.pool for role in decision.roles if role.function != "colocated"}) > 1
    paths = profile_paths([*profiles, *problem.costs.profiles])
    settings = {}
    for model in models:
        own = requests
        if requests.workload is not None and len(models) > 1:
            own = requests.of_workloads([index for index, name in enumerate(_models(problem)) if name == model])
        arch = required_model(problem, model)
        drafter = _drafter(problem, arch)
        settings[model] = FleetSetting(problem, arch, pools, calibration, paths, own, policies, crossing, drafter)
    return settings


def _drafter(problem: Problem, arch: Architecture) -> Drafter | None:
    """What drafts for a model, as the problem of the plan says."""
    spec = SpeculationSpec.of(problem)
    named = () if spec is None or spec.model is None or spec.model not in problem.models else (spec.model,)
    models = {name: required_model(problem, name) for name in named}
    return drafter_of(spec, arch, models, "options.speculation")


def _role_paths(decision: Decision, problem: Problem, requests: Requests, policies: Policies) -> RolePaths | None:
    """Which shares count: none where routers look for cached prompts, where engines come and go, or for a trace of
    several workloads.
    """
    operation, workloads = policies.operation, [workload.name for workload in problem.workloads]
    moving = operation is not None and (operation.changes or operation.control is not None)
    unknown = len(workloads) > 1 and requests.workload is None
    return None if moving or unknown or policies.routing == "cache-aware" else paths_of(decision, workloads)


def _operated(
    fleet: Fleet, operation: OperationSpec, leaders: dict[str, list[list[int]]], settings: Sequence[FleetSetting]
) -> Fleet:
    """The fleet with what is done to its engines."""
    fleet = replace(
        fleet,
        skew=operation.skew,
        eviction=operation.prefix_eviction,
        changes=operation.changes_of(leaders),
        control=operation.control.control() if operation.control else None,
    )
    if operation.elastic is not None:
        pool = list(settings[0].pools.values())[fleet.instances[0].pool]
        fleet = elastic_fleet(fleet, operation.elastic, settings[0].arch, pool)
    if operation.prefix_store is None:
        return _evicting(fleet)
    if not fleet.prefix_caching:
        raise PlannerError(
            "engines fill it that keep prefixes, and none does",
            where="operation: prefix_store",
            hint="add `--prefix-caching`, or leave it out",
        )
    token_bytes = max(map(moved_bytes, settings))
    if operation.prefix_store.size_bytes < token_bytes:
        raise PlannerError(
            f"{operation.prefix_store.size_bytes:g} bytes hold no token, whose cache has {token_bytes:g}",
            where="operation: prefix_store.size",
            hint="give a size that holds prompts, such as `2TB`",
        )
    store = MemoryTier(
        int(operation.prefix_store.size_bytes / token_bytes),
        request_tokens_per_s=operation.prefix_store.bandwidth_bytes_per_s / token_bytes,
    )
    return _evicting(replace(fleet, tiers=(*fleet.tiers, store)))


def _evicting(fleet: Fleet) -> Fleet:
    """The fleet; raises PlannerError where no tier could evict as it is told to."""
    if fleet.eviction != "lru" and not (fleet.tiers and fleet.prefix_caching):
        raise PlannerError(
            f"`{fleet.eviction}` is for memory tiers of prefixes, and there are none",
            where="operation: prefix_eviction",
            hint="give a `prefix_store` and `--prefix-caching`, or a plan that buys memory, or leave it out",
        )
    return fleet


def _calibration(problem: Problem, given: str | None) -> Calibration:
    name = given or problem.costs.calibration
    if name == "file":
        raise PlannerError(
            "the plan was costed with a calibration file, whose path it does not keep",
            hint="name it: `--calibration FILE`",
        )
    return load_calibration(name)


def fleet_of_engines(
    instances: list[Instance],
    settings: Sequence[FleetSetting],
    *,
    groups: Sequence[int],
    paths: tuple[tuple[RequestPath, ...], ...],
) -> Fleet:
    """Engines of all roles with the rules between them."""
    setting = settings[0]
    policies, overheads = setting.policies, setting.overheads
    apart = any(instance.role == "prefill" for instance in instances)
    return Fleet(
        tuple(instances),
        routing=policies.routing or DEFAULT_ROUTING,
        decode_routing=policies.decode_routing or DEFAULT_ROUTING,
        queueing=policies.queueing or "fcfs",
        prefix_caching=policies.prefix_caching,
        migration_period_s=policies.migration_period_s,
        crowded_below=policies.crowded_below,
        spare_above=policies.spare_above,
        pool_links=_pool_links(instances, settings),
        request_overhead_s=overheads.arrival_s + (overheads.router_s if apart else 0.0),
        frontend_s=0.0 if apart else overheads.frontend_s,
        frontend_token_s=overheads.frontend_token_s,
        tokenises_together=apart or overheads.tokenises_together > 0.0,
        handover_s=overheads.handover_s if apart else 0.0,
        groups=tuple(groups),
        paths=paths,
    )


def _tiers(decision: Decision, policies: Policies) -> tuple[MemoryTier, ...]:
    """The memory that the plan buys for prefixes, where prompts say what they share."""
    if decision.cache is None or not policies.prefix_caching:
        return ()
    token_bytes = decision.cache.token_bytes
    return tuple(
        MemoryTier(
            int(tier.size_bytes / token_bytes),
            tier.bandwidth_bytes_per_s / token_bytes,
            tier.request_bandwidth_bytes_per_s / token_bytes,
        )
        for tier in decision.cache.tiers
        if tier.units
    )


def _notes(decision: Decision, paths: RolePaths | None, workloads: Sequence[str]) -> Iterator[str]:
    if paths is None:
        if any(route.share < 1.0 - LEAST_SHARE for route in decision.routing):
            yield "instances of one function take requests by the routing policy, not in the shares of the plan"
        return
    names = [role.name for role in decision.roles]
    for workload, taken in zip(workloads, paths.paths, strict=True):
        ways = (
            f"{path.share:.1%} to {' and '.join(dict.fromkeys((names[path.first], names[path.last])))}"
            for path in taken
        )
        yield f"`{workload}` goes {', '.join(ways)}, as the plan routes it; within a role by the routing policy"


def _pool_links(instances: list[Instance], settings: Sequence[FleetSetting]) -> tuple[PoolLink, ...]:
    """The networks between pools that the problem states and that engines are in, in both directions.

    Of several models the one with the largest cache of a token says how many tokens a second they move.
    """
    setting, token_bytes = settings[0], max(map(moved_bytes, settings))
    number = {label: index for index, label in enumerate(setting.pools)}
    used = {instance.pool for instance in instances}
    links = []
    for link in setting.problem.cluster.links:
        near, far = (number[name] for name in link.pools)
        rate = link.bandwidth_bytes_per_s / token_bytes
        if {near, far} <= used:
            links += [PoolLink(near, far, rate, link.latency_s), PoolLink(far, near, rate, link.latency_s)]
    return tuple(links)
