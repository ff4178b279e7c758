"""Why a serving problem has no plan: the smallest set of its limits in conflict, and how far each must move."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from planner.infeasible import Conflict, Infeasible
from planner.kinds.serve.demand import Target
from planner.kinds.serve.shapes import shape_space
from planner.kinds.serve.solve import Setting, search
from planner.progress import Limits
from planner.solvers.conflicts import nearest_value, smallest_conflict
from planner.units import format_si, significant

ROOM = 16  # times the nodes of a pool stand for "as many GPUs as it takes"
FURTHEST = 100.0  # a limit that would have to move further than this factor has no near value
TOLERANCE = 0.01


@dataclass(frozen=True, slots=True)
class _Limit:
    """One limit of the problem; `apply(setting, factor)` moves it by a factor, `math.inf` takes it away."""

    name: str
    text: str
    apply: Callable[[Setting, float], Setting]
    nearest: Callable[[float], str]


def explain_infeasible(setting: Setting, limits: Limits) -> Infeasible:
    """The answer for a problem without a plan.

    Limits considered: each time limit of each workload, the required rates, the GPUs at hand, and the price. A limit
    is taken away by making it infinite (for GPUs: sixteen times the nodes).
    """
    known = {limit.name: limit for limit in _limits(setting)}

    def feasible(kept: frozenset[str]) -> bool:
        relaxed = setting
        for name, limit in known.items():
            if name not in kept:
                relaxed = limit.apply(relaxed, math.inf)
        return _solvable(relaxed, limits)

    names = list(known)
    if not feasible(frozenset()):
        return Infeasible([_structural(setting)], proved=True)
    if feasible(frozenset(names)):
        return Infeasible([], proved=False)
    conflict = smallest_conflict(names, feasible)
    return Infeasible([_row(setting, known, conflict, name, limits) for name in conflict], proved=True)


def _solvable(setting: Setting, limits: Limits) -> bool:
    outcome = search(setting, setting.targets, limits)
    return bool(outcome.result.objective)


def _row(setting: Setting, known: dict[str, _Limit], conflict: tuple[str, ...], name: str, limits: Limits) -> Conflict:
    """How far one limit of the conflict must move while all other limits of the problem stay."""
    base = setting

    def works(factor: float) -> bool:
        return _solvable(known[name].apply(base, factor), limits)

    limits.tell(f"nearest value of {known[name].text}")
    if not works(FURTHEST):
        return {"limit": known[name].text, "nearest": ""}
    found = nearest_value(works, 1.0, 1, furthest=FURTHEST, tolerance=TOLERANCE)
    return {"limit": known[name].text, "nearest": "" if found is None else known[name].nearest(found)}


def _structural(setting: Setting) -> Conflict:
    """Nothing runs even without any limit: no allowed shape holds the model."""
    models = ", ".join(sorted({architecture.name for architecture in setting.resolved.models.values()}))
    pools = ", ".join(pool.node.accelerator.display_name for pool in setting.resolved.pools)
    return {"limit": f"{models} fits no allowed shape on {pools}", "nearest": ""}


def _limits(setting: Setting) -> Iterator[_Limit]:
    for index, target in enumerate(setting.targets):
        yield from _time_limits(index, target)
        if target.required_rate_per_s() is not None and not _throughput(setting):
            yield _rate_limit(index, target)
    yield _gpu_limit(setting)
    price = setting.resolved.problem.limits.usd_per_hour
    if price is not None:
        yield _Limit("price", f"price <= {significant(price)} USD/h", _scale_price, lambda f: _usd(price, f))


def _throughput(setting: Setting) -> bool:
    objective = setting.resolved.problem.objective
    return objective.minimize is None


def _usd(price: float, factor: float) -> str:
    return f"{significant(price * factor)} USD/h"


def _time_limits(index: int, target: Target) -> Iterator[_Limit]:
    for limit in target.ttft_limits:
        if math.isfinite(limit.limit_s):
            text = f"{target.name}: {limit.statistic} ttft <= {format_si(limit.limit_s, 's')}"

            def scale_ttft(setting: Setting, factor: float, statistic: str = limit.statistic) -> Setting:
                old = setting.targets[index]
                moved = tuple(
                    dataclasses.replace(item, limit_s=item.limit_s * factor) if item.statistic == statistic else item
                    for item in old.ttft_limits
                )
                return _with_target(setting, index, dataclasses.replace(old, ttft_limits=moved))

            yield _Limit(f"{index}.ttft.{limit.statistic}", text, scale_ttft, _seconds("ttft", limit.limit_s))
    for field, name in (("tpot_limit_s", "tpot"), ("latency_limit_s", "latency")):
        value = float(getattr(target, field))
        if math.isfinite(value):

            def scale(setting: Setting, factor: float, field: str = field) -> Setting:
                old = setting.targets[index]
                moved = dataclasses.replace(old, **{field: getattr(old, field) * factor})
                return _with_target(setting, index, moved)

            text = f"{target.name}: {name} <= {format_si(value, 's')}"
            yield _Limit(f"{index}.{name}", text, scale, _seconds(name, value))


def _seconds(name: str, value_s: float) -> Callable[[float], str]:
    return lambda factor: f"{name} {format_si(value_s * factor, 's')}"


def _rate_limit(index: int, target: Target) -> _Limit:
    rate = target.required_rate_per_s()
    assert rate is not None

    def scale(setting: Setting, factor: float) -> Setting:
        old = setting.targets[index]
        lowered = 1e-6 if math.isinf(factor) else rate / factor
        return _with_target(setting, index, dataclasses.replace(old, rate_per_s=lowered, concurrency=None))

    text = f"{target.name}: rate {significant(rate)}/s"
    return _Limit(f"{index}.rate", text, scale, lambda factor: f"rate {significant(rate / factor)}/s")


def _gpu_limit(setting: Setting) -> _Limit:
    cap = setting.resolved.problem.limits.gpus
    count = sum(pool.num_gpus for pool in setting.resolved.pools)
    count = count if cap is None else min(cap, count)
    return _Limit("gpus", f"gpus <= {count}", _scale_gpus, lambda factor: f"{math.ceil(count * factor)} gpus")


def _with_target(setting: Setting, index: int, target: Target) -> Setting:
    targets = tuple(target if i == index else old for i, old in enumerate(setting.targets))
    return dataclasses.replace(setting, targets=targets)


def _scale_gpus(setting: Setting, factor: float) -> Setting:
    """Pools with `factor` times the nodes; instances stay within 16 times today's devices or one placement domain."""
    factor = min(factor, ROOM)
    resolved = setting.resolved
    pools = tuple(
        dataclasses.replace(pool, num_nodes=math.ceil(pool.num_nodes * factor - 1e-9)) for pool in resolved.pools
    )
    cap = resolved.problem.limits.gpus
    scaled = None if cap is None else math.ceil(cap * factor - 1e-9)
    problem = resolved.problem.model_copy(
        update={"limits": resolved.problem.limits.model_copy(update={"gpus": scaled})}
    )
    places = {key: dataclasses.replace(place, pool=pools[place.index]) for key, place in setting.places.items()}
    engine = problem.engine.name
    spaces = {key: shape_space(place.costs.arch, place.pool, engine, setting.options) for key, place in places.items()}
    return dataclasses.replace(
        setting,
        resolved=dataclasses.replace(resolved, pools=pools, problem=problem),
        places=places,
        spaces=spaces,
    )


def _scale_price(setting: Setting, factor: float) -> Setting:
    resolved = setting.resolved
    price = resolved.problem.limits.usd_per_hour
    assert price is not None
    moved = None if math.isinf(factor) else price * factor
    limits = resolved.problem.limits.model_copy(update={"usd_per_hour": moved})
    problem = resolved.problem.model_copy(update={"limits": limits})
    return dataclasses.replace(setting, resolved=dataclasses.replace(resolved, problem=problem))
