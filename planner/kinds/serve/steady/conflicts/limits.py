"""Why a serving problem is infeasible: an irreducible set of limits in conflict, and how far each must move."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial, reduce

from planner.documents.units import format_si, significant
from planner.errors import Conflict, Infeasible
from planner.hardware.cluster import Pool
from planner.hardware.library import find_node
from planner.kinds.serve.steady.candidates import Candidate
from planner.kinds.serve.steady.conflicts.excluded import holds_every_model, nothing_runs
from planner.kinds.serve.steady.context import largest_context
from planner.kinds.serve.steady.demand import Target
from planner.kinds.serve.steady.formulate import gpus_at_hand
from planner.kinds.serve.steady.points import Tally
from planner.kinds.serve.steady.search import ServeSetting, list_candidates, search, with_pools
from planner.kinds.serve.steady.time_limits import ATTAINMENT, MOST_ATTAINMENT, TimeLimit
from planner.problem.resolve import resolve_pool
from planner.problem.schema import AvailabilitySpec
from planner.progress import Limits
from planner.solvers.conflicts import nearest_candidate, nearest_value, smallest_conflict

ROOM = 16  # times the nodes of a pool stand for "as many GPUs as it takes"
FURTHEST = 100.0  # a limit that would have to move further than this factor has no near value
LEAST_LOAD = 1e-3  # of the load asked for stands for "none at all", and never more than these
LEAST_RATE_PER_S, LEAST_CLIENTS = 1e-9, 1.0
TOLERANCE = 0.01


@dataclass(frozen=True, slots=True)
class _Limit:
    """One limit of the problem: how to take it away, and the nearest value of it that works, None when none does."""

    name: str
    text: str
    remove: Callable[[ServeSetting], ServeSetting]
    nearest: Callable[[ServeSetting, Callable[[ServeSetting], bool]], str | None]


def explain_infeasible(setting: ServeSetting, limits: Limits) -> Infeasible:
    """The answer for a problem without a plan.

    Limits considered: each time limit and the load of each workload, the GPUs at hand, the context that is stated, the
    memory left free, what may fail, and the price. A limit is taken away by making it infinite (for GPUs: sixteen times
    the nodes), a load by making it almost nothing, the context and the reserve by having none. The nearest value of one
    is found while all other limits of the problem stay. Where a limit of the solve comes first, all limits are named,
    without nearest values; none are where nothing is to be explained.
    """
    if not limits.explain:
        return Infeasible((), proved=True)
    limits.tell("naming the limits in conflict")
    known = {limit.name: limit for limit in _limits(setting)}

    listed = _Listed()
    works = partial(_solvable, limits=limits, listed=listed)

    def relaxed(kept: frozenset[str]) -> ServeSetting:
        removed = (limit for name, limit in known.items() if name not in kept)
        return reduce(lambda left, limit: limit.remove(left), removed, setting)

    def feasible(kept: frozenset[str]) -> bool:
        return works(relaxed(kept))

    try:
        if not feasible(frozenset()):
            return Infeasible([nothing_runs(relaxed(frozenset({"gpus"})), listed.of)], proved=True)
        if feasible(frozenset(known)):
            return Infeasible([], proved=False)
        rows: list[Conflict] = []
        for name in smallest_conflict(list(known), feasible):
            limits.tell(f"nearest value of {known[name].text}")
            rows.append({"limit": known[name].text, "nearest": known[name].nearest(setting, works) or ""})
        return Infeasible(rows, proved=True)
    except _CutShort:
        return Infeasible([{"limit": limit.text, "nearest": ""} for limit in known.values()], proved=True)


class _CutShort(Exception):
    """A limit of the solve came before the answer to a question about other limits."""


@dataclass(frozen=True, slots=True)
class _Listed:
    """Candidates of settings that were asked about; rates and prices change none of them."""

    known: dict[object, tuple[ServeSetting, list[Candidate]]] = dataclasses.field(default_factory=dict)

    def of(self, setting: ServeSetting) -> list[Candidate]:
        """Those of a setting; settings that share what was priced have the same costs, shapes and options."""
        gpus = gpus_at_hand(setting.resolved.problem, setting.resolved.pools)
        targets = tuple(dataclasses.replace(target, rate_per_s=None) for target in setting.targets)
        key = (id(setting.priced), setting.pooling, gpus, targets)
        if key not in self.known:
            self.known[key] = (setting, list_candidates(setting, setting.targets, Tally()))
        return self.known[key][1]


def _solvable(setting: ServeSetting, limits: Limits, listed: _Listed) -> bool:
    candidates = listed.of(setting)
    if not holds_every_model(setting, candidates):
        return False
    outcome = search(setting, setting.targets, limits, tie_break=False, candidates=candidates)
    if not outcome.has_mix and not outcome.proven:
        raise _CutShort
    return outcome.has_mix


def _limits(setting: ServeSetting) -> Iterator[_Limit]:
    for index, target in enumerate(setting.targets):
        yield from _time_limits(index, target)
        if target.attainment is not None:
            yield _attainment_limit(index, target)
        if setting.resolved.problem.serves_loads:
            yield _load_limit(index, target)
    yield _gpu_limit(setting)
    stated = setting.resolved.problem.engine.max_context_tokens
    if stated is not None:
        yield _Limit(
            "context", f"max_context_tokens = {stated}", lambda setting: _holding(setting, None), _nearest_context
        )
    if setting.options.memory_reserve > 0.0:
        yield _reserve_limit(setting.options.memory_reserve)
    if setting.resolved.problem.availability is not None:
        yield _availability_limit(setting.resolved.problem.availability)
    if setting.options.max_shapes is not None:
        yield _shapes_limit(setting.options.max_shapes)
    price = setting.resolved.problem.limits.usd_per_hour
    if price is not None:
        yield _scaled("price", f"price <= {significant(price)} USD/h", _with_price, price, "{} USD/h", significant)


def _scaled(
    name: str,
    text: str,
    move: Callable[[ServeSetting, float], ServeSetting],
    value: float,
    said: str,
    show: Callable[[float], str],
    *,
    least: float = math.inf,
    rising: bool = True,
) -> _Limit:
    """A limit that `move(setting, value)` sets; the nearest value is rounded away from the limit to three digits."""

    def nearest(setting: ServeSetting, works: Callable[[ServeSetting], bool]) -> str | None:
        def works_at(factor: float) -> bool:
            return works(move(setting, _rounded(value * factor if rising else value / factor, up=rising)))

        if not works_at(FURTHEST):
            return None
        factor = nearest_value(works_at, 1.0, 1, furthest=FURTHEST, tolerance=TOLERANCE)
        assert factor is not None
        return said.format(show(_rounded(value * factor if rising else value / factor, up=rising)))

    furthest = math.inf if rising else min(value * LEAST_LOAD, least)
    return _Limit(name, text, lambda setting: move(setting, furthest), nearest)


def _rounded(value: float, *, up: bool) -> float:
    """`value` to three significant digits, up or down."""
    if not math.isfinite(value) or value == 0.0:
        return value
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 2)
    steps = math.ceil(value / unit - 1e-9) if up else math.floor(value / unit + 1e-9)
    return float(f"{steps * unit:.3g}")


def _time_limits(index: int, target: Target) -> Iterator[_Limit]:
    def seconds(margin: float) -> Callable[[float], str]:
        """A limit as the problem states it."""
        return lambda value: format_si(value if margin == 1.0 else _rounded(value * margin, up=True), "s")

    tpot = target.margins.tpot
    for name, limits, margin in (
        ("ttft", target.ttft_limits, target.margins.ttft),
        ("latency", target.latency_limits, tpot),
        ("tpot", target.tpot_limits, tpot),
        ("itl", target.itl_limits, tpot),
    ):
        for limit in limits:
            if math.isfinite(limit.limit_s) and limit.statistic != ATTAINMENT:
                text = f"{target.name}: {limit.statistic} {name} <= {seconds(margin)(limit.limit_s)}"
                move = partial(_with_time, index, f"{name}_limits", limit)
                yield _scaled(
                    f"{index}.{name}.{limit.statistic}", text, move, limit.limit_s, f"{name} {{}}", seconds(margin)
                )


def _with_time(index: int, field: str, limit: TimeLimit, setting: ServeSetting, value: float) -> ServeSetting:
    """`limit` of one target at another value, and with it what an attainment asks of the same time."""
    old: tuple[TimeLimit, ...] = getattr(setting.targets[index], field)
    also = {limit.statistic} | ({ATTAINMENT} if limit.quantile is not None else set())
    moved = tuple(
        dataclasses.replace(item, limit_s=value) if item.statistic in also and item.limit_s == limit.limit_s else item
        for item in old
    )
    return _with_field(index, field, setting, moved)


def _attainment_limit(index: int, target: Target) -> _Limit:
    """Of the share that may miss its limits the nearest multiple is sought; without a limit every quantile stays."""
    assert target.attainment is not None
    missing = max(1.0 - target.attainment, 1.0 - MOST_ATTAINMENT)

    def move(setting: ServeSetting, value: float) -> ServeSetting:
        wanted = max(1.0 - value, 0.0)
        for field in ("ttft_limits", "tpot_limits", "latency_limits"):
            moved = tuple(
                dataclasses.replace(item, quantile=wanted) if item.statistic == ATTAINMENT else item
                for item in getattr(setting.targets[index], field)
            )
            setting = _with_field(index, field, setting, moved)
        return setting

    text = f"{target.name}: attainment >= {target.attainment:.4g}"
    return _scaled(f"{index}.attainment", text, move, missing, "attainment {}", lambda miss: f"{1.0 - miss:.4g}")


def _load_limit(index: int, target: Target) -> _Limit:
    if target.clients is not None:
        move = partial(_with_field, index, "clients")
        text = f"{target.name}: concurrency {target.clients}"
        return _scaled(
            f"{index}.load", text, move, target.clients, "concurrency {}", significant,
            least=LEAST_CLIENTS, rising=False,
        )  # fmt: skip
    assert target.rate_per_s is not None
    move = partial(_with_field, index, "rate_per_s")
    text = f"{target.name}: rate {significant(target.rate_per_s)}/s"
    return _scaled(
        f"{index}.load", text, move, target.rate_per_s, "rate {}/s", significant, least=LEAST_RATE_PER_S, rising=False
    )


def _reserve_limit(reserve: float) -> _Limit:
    """The memory that plans leave free; the nearest value is none of it, where that helps."""

    def nearest(setting: ServeSetting, works: Callable[[ServeSetting], bool]) -> str | None:
        return "memory_reserve 0 %" if works(_without_reserve(setting)) else None

    return _Limit("reserve", f"memory_reserve = {100.0 * reserve:.3g} %", _without_reserve, nearest)


def _shapes_limit(most: int) -> _Limit:
    """The instance types that plans may have; nearest is the next number with a plan, up to twice as many and one."""

    def nearest(setting: ServeSetting, works: Callable[[ServeSetting], bool]) -> str | None:
        number = nearest_candidate(lambda number: works(_with_shapes(setting, number)), range(most + 1, 2 * most + 2))
        return None if number is None else f"max_shapes {number}"

    return _Limit("shapes", f"max_shapes = {most}", partial(_with_shapes, number=None), nearest)


def _with_shapes(setting: ServeSetting, number: int | None) -> ServeSetting:
    resolved = setting.resolved
    problem = resolved.problem.model_copy(update={"options": {**resolved.problem.options, "max_shapes": number}})
    return dataclasses.replace(setting, resolved=dataclasses.replace(resolved, problem=problem))


def _availability_limit(availability: AvailabilitySpec) -> _Limit:
    """What may fail; the nearest is that single instances may, where that helps, else that nothing may."""

    def nearest(setting: ServeSetting, works: Callable[[ServeSetting], bool]) -> str | None:
        alone = AvailabilitySpec()
        if availability != alone and works(_with_availability(setting, alone)):
            return f"availability {alone.text}"
        return "no availability" if works(_with_availability(setting, None)) else None

    return _Limit("availability", f"availability {availability.text}", partial(_with_availability, moved=None), nearest)


def _with_availability(setting: ServeSetting, moved: AvailabilitySpec | None) -> ServeSetting:
    problem = setting.resolved.problem.model_copy(update={"availability": moved})
    return dataclasses.replace(setting, resolved=dataclasses.replace(setting.resolved, problem=problem))


def _without_reserve(setting: ServeSetting) -> ServeSetting:
    options = setting.options.model_copy(update={"memory_reserve": 0.0})
    return with_pools(dataclasses.replace(setting, options=options), setting.resolved)


def _nearest_context(setting: ServeSetting, works: Callable[[ServeSetting], bool]) -> str | None:
    """The largest context with a plan: one of those that instance types hold which keep all other limits."""
    free = _holding(setting, None)
    candidates = list_candidates(free, free.targets, Tally())
    held = (largest_context(item, free.costs_of_pool[item.model, item.pool]) for item in candidates)
    tokens = nearest_candidate(lambda tokens: works(_holding(setting, tokens)), sorted(set(held), reverse=True))
    return None if tokens is None else f"max_context_tokens {tokens}"


def _holding(setting: ServeSetting, tokens: int | None) -> ServeSetting:
    """Instance types that hold sequences of so many tokens, for requests as long as they are."""
    problem = setting.resolved.problem
    engine = problem.engine.model_copy(update={"max_context_tokens": tokens})
    return with_pools(
        setting, dataclasses.replace(setting.resolved, problem=problem.model_copy(update={"engine": engine}))
    )


def _with_field(index: int, field: str, setting: ServeSetting, value: object) -> ServeSetting:
    moved = dataclasses.replace(setting.targets[index], **{field: value})  # type: ignore[arg-type]  # a field's own type
    targets = tuple(moved if i == index else old for i, old in enumerate(setting.targets))
    return dataclasses.replace(setting, targets=targets)


def _with_price(setting: ServeSetting, price: float) -> ServeSetting:
    moved = None if math.isinf(price) else price
    limits = setting.resolved.problem.limits.model_copy(update={"usd_per_hour": moved})
    problem = setting.resolved.problem.model_copy(update={"limits": limits})
    return dataclasses.replace(setting, resolved=dataclasses.replace(setting.resolved, problem=problem))


def _gpu_limit(setting: ServeSetting) -> _Limit:
    """The GPUs at hand; the nearest number is that of the cap, then of whole nodes more in every pool."""
    problem, pools = setting.resolved.problem, setting.resolved.pools
    total, count = sum(pool.num_gpus for pool in pools), gpus_at_hand(problem, pools)

    def nearest(setting: ServeSetting, works: Callable[[ServeSetting], bool]) -> str | None:
        sizes: list[tuple[int | None, tuple[Pool, ...]]] = [(cap, pools) for cap in range(count + 1, total + 1)]
        sizes += [(None, larger) for larger in _larger(setting)]
        nearest_size = nearest_candidate(lambda size: works(_with_gpus(setting, *size)), sizes)
        if nearest_size is None:
            return None
        cap, grown = nearest_size
        return f"{cap or sum(pool.num_gpus for pool in grown)} gpus"

    def remove(setting: ServeSetting) -> ServeSetting:
        return _with_gpus(setting, None, _larger(setting)[-1])

    return _Limit("gpus", f"gpus <= {count}", remove, nearest)


def _larger(setting: ServeSetting) -> list[tuple[Pool, ...]]:
    """Pools with more GPUs, up to `ROOM` times the nodes: a pool inside one node fills it first."""
    pools, specs = setting.resolved.pools, setting.resolved.problem.cluster.pools
    sizes: list[tuple[Pool, ...]] = []
    if len(pools) == 1 and pools[0].num_nodes == 1 and specs[0].gpus is not None and specs[0].gpus_per_node is None:
        whole = find_node(specs[0].gpu).num_gpus
        for gpus in range(pools[0].num_gpus + 1, whole + 1):
            sized = specs[0].model_copy(update={"gpus": gpus})
            sizes.append((resolve_pool(sized, 0, setting.resolved.where),))
        pools = sizes[-1] if sizes else pools
    most = max(pool.num_nodes for pool in pools)
    for nodes in range(most + 1, ROOM * most + 1):
        sizes.append(
            tuple(dataclasses.replace(pool, num_nodes=math.ceil(pool.num_nodes * nodes / most)) for pool in pools)
        )
    return sizes


def _with_gpus(setting: ServeSetting, cap: int | None, pools: tuple[Pool, ...]) -> ServeSetting:
    problem = setting.resolved.problem
    limits = problem.limits.model_copy(update={"gpus": cap})
    problem = problem.model_copy(update={"limits": limits})
    return with_pools(setting, dataclasses.replace(setting.resolved, pools=pools, problem=problem))
