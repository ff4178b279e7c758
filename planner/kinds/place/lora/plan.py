"""Adapters on engines as plans: solved, stated again from their own hosts, and checked."""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from planner.errors import Conflict, Infeasible, PlannerError, Stopped
from planner.kinds.place.decision import AdapterHost, PlaceDecision
from planner.kinds.place.envelope import bound_again, certificate, place_envelope
from planner.kinds.place.floor import places_of
from planner.kinds.place.lora.setting import EngineShape, LoraSetting, read_setting
from planner.plan.blocks import block_on
from planner.plan.findings import Finding
from planner.plan.restated import LeftOut, Restated, unproven
from planner.plan.schema import (
    Axis,
    Engine,
    Envelope,
    Evidence,
    Memory,
    Objective,
    Parallelism,
    Prediction,
    Role,
)
from planner.problem.resolve import Resolved
from planner.progress import Limits
from planner.solvers.placement.adapters import AdapterPlacement, Adapters, Request, place_adapters
from planner.solvers.placement.adapters import Engine as AdapterEngine
from planner.solvers.placement.floor import Kind
from planner.solvers.result import SolveResult, Status

METRIC = "tokens_per_s_per_gpu"
SOLVER = "integer program over engines and adapters"
PRECISION = 1e-3  # to which the integer program is solved
TRACE = 1e-9  # of a share: less is none
SPARE_BLOCKS = 1.0  # of engines and requests without blocks: caches are in the engines' batches
OPEN = "the integer program is solved to .1 %"
OPEN_GPUS = "of fewer GPUs it was neither proven that they are too few nor that they will do"
BOUND = LeftOut("certificate.bound", "whether no hosts do better")
NOTE = "adapters are priced by their bytes and FLOP; no measurement of engines with adapters is behind them"
STATED = "what adapters beside the weights cost is as the problem states it"
ASSUMPTIONS = (
    "requests of all adapters have the lengths of the workload, and engines run full batches when they are busy",
    "an engine that is merged with an adapter serves requests of that one alone",
)


@dataclass(frozen=True, slots=True)
class Placed:
    """Hosts on engines of one shape, the busiest of which works so much of the time at the stated rates."""

    shape: EngineShape
    engines: int
    hosts: tuple[AdapterHost, ...]


def solve(resolved: Resolved, limits: Limits) -> Envelope:
    """The hosts whose busiest engine has least to do, or the fewest GPUs on which none has too much.

    Raises Infeasible where engines hold too few adapters or work too much, Stopped at a time limit without hosts.
    """
    setting = read_setting(resolved)
    if fewest(setting):
        placed, bound, stop_reason = _fewest(setting, limits)
        return envelope(setting, placed, bound, stop_reason)
    best: tuple[float, Placed] | None = None
    bound, stop_reason = 0.0, "finished"
    for shape in setting.shapes:
        result = _solved(setting, shape, setting.most_engines(shape), limits)
        if result is None:
            continue
        if result.solution is not None:
            placed = _placed(setting, shape, setting.most_engines(shape), result.solution)
            value = tokens_per_s_per_gpu(setting, placed)
            best = (value, placed) if best is None or value > best[0] else best
        bound = max(bound, _per_gpu(setting, result.bound) if result.bound else math.inf)
        stop_reason = _stopped(stop_reason, result)
    if best is None:
        raise _too_few_slots(setting)
    return envelope(setting, best[1], None if math.isinf(bound) else max(bound, best[0]), stop_reason)


def _stopped(stop_reason: str, result: SolveResult[AdapterPlacement]) -> str:
    return stop_reason if result.stop_reason == "finished" else result.stop_reason


def fewest(setting: LoraSetting) -> bool:
    """Whether GPUs are to be few; else tokens many. Raises PlannerError for other objectives."""
    objective = setting.resolved.problem.objective
    if objective.minimize == "gpus":
        return True
    if objective.maximize == METRIC:
        return False
    raise PlannerError(
        "adapters are placed for tokens a second, or on few GPUs",
        where=setting.resolved.where(("objective",)),
        hint="write `maximize: tokens_per_s_per_gpu` or `minimize: gpus`",
    )


def _solved(
    setting: LoraSetting, shape: EngineShape, engines: int, limits: Limits
) -> SolveResult[AdapterPlacement] | None:
    """Parts of the time that engines work, as seconds of a second; None where they hold too few adapters."""
    asked, least = len(setting.names), setting.options.min_replicas
    if engines < max(least, 1) or asked * least > engines * setting.lora.slots:
        return None
    problem = Adapters(
        asked,
        tuple(AdapterEngine(setting.lora.slots, SPARE_BLOCKS) for _ in range(engines)),
        tuple(Request(k, 0, 0.0, rate * shape.unmerged_s) for k, rate in enumerate(setting.rates_per_s)),
        0.0,
        1.0,
        shape.merged_s / shape.unmerged_s if setting.lora.merged else None,
        least,
    )
    result = place_adapters(problem, time_limit_s=limits.time_limit_s, gap=PRECISION)
    if result.solution is None and result.status is Status.UNKNOWN:
        raise Stopped(result.stop_reason, bound=result.bound)
    return result


def _fewest(setting: LoraSetting, limits: Limits) -> tuple[Placed, float, str]:
    """The hosts on fewest GPUs, a bound on these (fewer engines were solved, and work too much), why solving ended."""
    best: Placed | None = None
    least, stop_reason = math.inf, "finished"
    rooms = False
    for shape in setting.shapes:
        for engines in range(1, setting.most_engines(shape) + 1):
            used = engines * shape.tp
            if best is not None and used >= best.engines * best.shape.tp:
                break
            result = _solved(setting, shape, engines, limits)
            if result is None:
                continue
            rooms, stop_reason = True, _stopped(stop_reason, result)
            if result.bound is None or result.bound <= setting.max_busy:
                least = min(least, float(used))
            if result.objective is not None and result.objective <= setting.max_busy and result.solution:
                best = _placed(setting, shape, engines, result.solution)
                break
    if best is None:
        raise _too_busy(setting, proved=math.isinf(least)) if rooms else _too_few_slots(setting)
    return best, min(least, float(best.engines * best.shape.tp)), stop_reason


def _placed(setting: LoraSetting, shape: EngineShape, engines: int, solution: AdapterPlacement) -> Placed:
    """Hosts by engine and adapter; those that no request goes to are kept only as replicas that were asked for."""
    hosts = []
    for j, (k, name) in itertools.product(range(engines), enumerate(setting.names)):
        shares = [share if share > TRACE else 0.0 for share in solution.shares[k]]
        if shares[j] or (solution.hosts[k][j] and setting.options.min_replicas > 1):
            part, merged = shares[j] / math.fsum(shares), solution.merged[j] == k
            hosts.append(AdapterHost(engine=f"engine-{j}", adapter=name, share=min(part, 1.0), merged=merged))
    return Placed(shape, engines, tuple(hosts))


def busy(setting: LoraSetting, placed: Placed) -> dict[str, float]:
    """Part of the time that every engine works."""
    rates = dict(zip(setting.names, setting.rates_per_s, strict=True))
    parts = defaultdict[str, float](float)
    for host in placed.hosts:
        request_s = placed.shape.merged_s if host.merged else placed.shape.unmerged_s
        parts[host.engine] += host.share * rates[host.adapter] * request_s
    return dict(parts)


def tokens_per_s_per_gpu(setting: LoraSetting, placed: Placed) -> float:
    """Output tokens a second a GPU at hand, with rates grown alike until the busiest engine works all the time."""
    return _per_gpu(setting, max(busy(setting, placed).values()))


def _per_gpu(setting: LoraSetting, most_busy: float) -> float:
    tokens = sum(setting.rates_per_s) * setting.workload.output.mean_tokens
    return tokens / most_busy / setting.gpus


def envelope(setting: LoraSetting, placed: Placed, bound: float | None, stop_reason: str) -> Envelope:
    """The plan of these hosts."""
    resolved, few = setting.resolved, fewest(setting)
    parts = busy(setting, placed)
    gpus = float(placed.engines * placed.shape.tp)
    tokens = tokens_per_s_per_gpu(setting, placed)
    value = gpus if few else tokens
    what = "on fewer GPUs{bound} keep engines as idle" if few else "let more tokens through{bound}"
    return place_envelope(
        resolved,
        _decision(setting, placed),
        (
            Prediction(metric=METRIC, value=tokens),
            Prediction(metric="gpus", value=gpus),
            Prediction(metric="load_served", value=min(1.0, 1.0 / max(parts.values()))),
            *(Prediction(metric="busy", of=name, value=part) for name, part in sorted(parts.items())),
        ),
        certificate(
            f"no hosts of these adapters {what}, under the stated prices",
            Objective(metric="gpus" if few else METRIC, sense="minimize" if few else "maximize", value=value),
            bound,
            OPEN_GPUS if few else OPEN,
            {"tp": [shape.tp for shape in setting.shapes], "adapters of an engine": ["every set that has room"]},
            len(setting.shapes),
            stop_reason,
        ),
        solver=SOLVER,
        evidence=Evidence(basis={"analytical": 1.0}, notes=(NOTE if setting.lora.slowdown is None else STATED,)),
        assumptions=(*ASSUMPTIONS, *_overload(max(parts.values()))),
        calibration=setting.calibration,
    )


def _overload(busiest: float) -> tuple[str, ...]:
    """What a busy part above 1 means."""
    if busiest <= 1.0:
        return ()
    return (
        f"at the stated rates the busiest engine has {busiest:.3g} s of work a second: {1.0 / busiest:.1%} of these "
        "rates are served, and queues grow at more",
    )


def _decision(setting: LoraSetting, placed: Placed) -> PlaceDecision:
    shape, engine = placed.shape, setting.resolved.problem.engine
    kinds: list[Kind] = [(shape.tp, ())] * placed.engines
    places = places_of(setting.pool, setting.floor, kinds, setting.options)
    axes = (Axis(name="tp", size=shape.tp, stride=1),) if shape.tp > 1 else ()
    names = [f"engine-{j}" for j in range(placed.engines)]
    role = Role(
        name="engine",
        function="adapters",
        model=setting.workload.model,
        engine=Engine(name=engine.name, version=engine.version),
        pool=setting.pool.name,
        replicas=1,
        parallelism=Parallelism(tp=shape.tp),
        limits={"max_batch": shape.batch, "max_adapters": setting.lora.slots},
        memory=Memory(
            weights_bytes=shape.weights_bytes + setting.lora.slots * shape.adapter_bytes,
            kv_cache_bytes=shape.cache_bytes,
            activations_bytes=shape.activations_bytes,
            workspace_bytes=shape.workspace_bytes,
            capacity_bytes=shape.room_bytes,
        ),
    )
    return PlaceDecision(
        roles=tuple(role.model_copy(update={"name": name}) for name in names),
        placement=tuple(
            block_on(place, name, setting.pool.name, axes) for place, name in zip(places, names, strict=True)
        ),
        adapters=placed.hosts,
    )


def restate(resolved: Resolved, stated: Envelope, decision: PlaceDecision) -> Restated:
    """The plan of its own hosts; raises PlannerError for hosts that its engines cannot have."""
    setting = read_setting(resolved)
    bound, stop_reason = stated.certificate.bound, stated.certificate.stop_reason
    made = envelope(setting, _stated(setting, decision), bound, stop_reason)
    if bound is None:
        return Restated(made.model_copy(update={"certificate": unproven(made.certificate.objective)}))
    return Restated(made, (BOUND,))


def prove(resolved: Resolved, stated: Envelope) -> Iterator[Finding]:
    """Whether the bound is that of the problem: solved again."""
    again = solve(resolved, Limits()).certificate.bound
    yield bound_again(stated.certificate, again, "its adapters")


def check(decision: PlaceDecision, slots: int | None) -> Iterator[Finding]:
    """Every adapter's requests all go somewhere, engines hold no more adapters than they can, merged ones hold one."""
    names = {role.name for role in decision.roles}
    strange = sorted({host.engine for host in decision.adapters} - names)
    what = f"no engine is called `{strange[0]}`" if strange else "every host names an engine"
    yield Finding("place.hosts", not strange, what, "adapters", f"use one of {', '.join(sorted(names))}")
    pairs = Counter((host.engine, host.adapter) for host in decision.adapters)
    twice = sorted(pair for pair, count in pairs.items() if count > 1)
    what = f"`{twice[0][1]}` is twice on `{twice[0][0]}`" if twice else "an adapter is once on an engine"
    yield Finding("place.once", not twice, what, "adapters", "merge the two hosts")
    for adapter in sorted({host.adapter for host in decision.adapters}):
        sent = sum(host.share for host in decision.adapters if host.adapter == adapter)
        what, hint = f"engines serve {sent:.6g} of the requests of `{adapter}`", "make its shares add up to 1"
        yield Finding("place.shares", abs(sent - 1.0) <= 1e-6, what, f"adapters.{adapter}", hint)
    for engine in sorted({host.engine for host in decision.adapters}):
        here = [host for host in decision.adapters if host.engine == engine]
        alone = not any(host.merged for host in here) or sum(host.share > 0.0 for host in here) == 1
        what = f"{len(here)} adapters" + ("" if alone else ", one of them merged into its weights")
        yield Finding("place.merged", alone, what, f"adapters.{engine}", "send the others elsewhere, or merge none")
        if slots is not None:
            what, hint = f"{len(here)} adapters, {slots} at most", "host some elsewhere"
            yield Finding("place.slots", len(here) <= slots, what, f"adapters.{engine}", hint)


def _stated(setting: LoraSetting, decision: PlaceDecision) -> Placed:
    """What a decision states; raises PlannerError for adapters of no problem, engines unlike, and replicas missing."""
    sizes = {role.parallelism.tp for role in decision.roles}
    if len(sizes) != 1:
        raise PlannerError("engines of several sizes", where="decision.roles", hint="give all the same tp")
    strange = sorted({host.adapter for host in decision.adapters} ^ set(setting.names))
    if strange:
        where, hint = "decision.adapters", f"adapters are {', '.join(setting.names)}"
        raise PlannerError(f"`{strange[0]}` is not an adapter of both plan and problem", where=where, hint=hint)
    homes = Counter(host.adapter for host in decision.adapters)
    few = [name for name in setting.names if homes[name] < setting.options.min_replicas]
    if few:
        what = f"`{few[0]}` is on {homes[few[0]]} engines, {setting.options.min_replicas} are asked for"
        raise PlannerError(what, where="decision.adapters", hint="add a host")
    return Placed(setting.shape(sizes.pop()), len(decision.roles), decision.adapters)


def _too_few_slots(setting: LoraSetting) -> Infeasible:
    least = setting.options.min_replicas
    engines = max(setting.most_engines(shape) for shape in setting.shapes)
    conflict: list[Conflict] = [
        {"limit": f"slots = {setting.lora.slots}", "nearest": f"{-(-len(setting.names) * least // max(engines, 1))}"},
        {"limit": f"{len(setting.names)} adapters on {least} engines each", "nearest": "fewer of them"},
        {"limit": f"{setting.gpus} GPUs", "nearest": "more of them"},
    ]
    return Infeasible(conflict, proved=True)


def _too_busy(setting: LoraSetting, *, proved: bool) -> Infeasible:
    """What the stated rates take of all GPUs at least, whichever engines these make."""
    taken = min(
        sum(setting.rates_per_s) * (shape.merged_s if setting.lora.merged else shape.unmerged_s) * shape.tp
        for shape in setting.shapes
    )
    conflict: list[Conflict] = [
        {"limit": f"max_busy = {setting.max_busy:g}", "nearest": f"{taken / setting.gpus:.3g} at the least"},
        {"limit": f"{setting.gpus} GPUs", "nearest": f"more than {taken / setting.max_busy:.3g}"},
        {"limit": f"{sum(setting.rates_per_s):g} requests/s", "nearest": "less load"},
    ]
    return Infeasible(conflict, proved=proved)
