"""CP-SAT for passes on ranks within memory: intervals, a hint, a bound; the formulation of `modalities.passes`."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, lcm
from typing import TYPE_CHECKING, Protocol

from planner.solvers.backends.cpsat import timed_solver
from planner.solvers.backends.mathopt import version

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

Orders = tuple[tuple[int, ...], ...]
Span = Callable[[Orders], float | None]
"""Seconds of orders; None where they are no schedule that fits."""


class OnePass(Protocol):
    """As `modalities.passes.Pass`."""

    @property
    def rank(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def before(self) -> tuple[int, ...]: ...
    @property
    def partner(self) -> int | None: ...
    @property
    def held_bytes(self) -> float: ...


class Passes(Protocol):
    """As `modalities.passes.PassProblem`."""

    @property
    def passes(self) -> Sequence[OnePass]: ...
    @property
    def capacity_bytes(self) -> tuple[float, ...]: ...
    @property
    def heads(self) -> tuple[float, ...]: ...
    @property
    def tails(self) -> tuple[float, ...]: ...
    @property
    def holds(self) -> dict[int, float]: ...
    def ways_from(self, first: int) -> dict[int, float]: ...


MOST_UNITS = 10**7  # horizon in units of time; finer durations are not given to a solver of whole numbers
SEARCHED = 0.6  # of the time for schedules, the rest for the bound alone


@dataclass(frozen=True, slots=True)
class Improved:
    """Orders, what was proven, and why the search ended."""

    orders: Orders
    bound: float
    stop_reason: str
    solver: str


def improve(
    problem: Passes,
    orders: Orders,
    span_of: Span,
    bound: float,
    *,
    time_limit_s: float,
    seed: int = 0,
    threads: int = 1,
) -> Improved:
    """The best orders from those given as a hint, which come back where CP-SAT does not apply."""
    name = f"ortools-cpsat {version()}"
    span = span_of(orders)
    assert span is not None
    unit = _unit([each.seconds for each in problem.passes], span)
    sizes = _unit([*(each.held_bytes for each in problem.passes), *problem.capacity_bytes], max(problem.capacity_bytes))
    if time_limit_s <= 0.5 or unit is None or sizes is None:
        return Improved(orders, bound, "numerical" if unit is None or sizes is None else "time_limit", name)
    best = _searched(problem, orders, span_of, bound, unit, sizes, SEARCHED * time_limit_s, seed, threads)
    if best.stop_reason == "finished":
        return best
    return _bounded(problem, best, span_of, unit, sizes, (1.0 - SEARCHED) * time_limit_s, seed, threads)


PER_SECOND, SLOWER = 0.35, 6.0
"""CP-SAT's own units of time in a CPU-second, so that no bound hangs on load; and the clock at most, over the limit."""
MOST_RELAXED = 600  # passes, of which the ways between those of a rank are laid out


def bound_of_ranks(problem: Passes, span: float, bound: float, time_limit_s: float, seed: int = 0) -> float:
    """Seconds that no schedule is below, of which `span` is one's: the first rank alone, then with the last.

    Between passes of these ranks lie at least the ways through the others, which are as wide as is wanted.
    """
    unit = _unit([each.seconds for each in problem.passes], span)
    sizes = _unit([*(each.held_bytes for each in problem.passes), *problem.capacity_bytes], max(problem.capacity_bytes))
    if unit is None or sizes is None or len(problem.passes) > MOST_RELAXED:
        return bound
    last = len(problem.capacity_bytes) - 1
    subsets = list(dict.fromkeys(((0,), (0, last))))
    for turn, ranks in enumerate(subsets):
        own = [o for o, each in enumerate(problem.passes) if each.rank in ranks]
        least, most = ceil(bound * unit - 1e-6), round(span * unit)
        if own and least < most:
            started = time.process_time()
            model = _relaxed(problem, ranks, own, unit, sizes, least, most)
            solver = timed_solver(max(SLOWER * time_limit_s, 0.1), seed, 1)
            solver.parameters.linearization_level = 2  # its cuts close a rank three times as fast as it is without
            solver.parameters.max_deterministic_time = PER_SECOND * time_limit_s / (len(subsets) - turn)
            solver.solve(model)
            bound = max(bound, solver.best_objective_bound / unit)
            time_limit_s -= time.process_time() - started
    return min(bound, span)


def _relaxed(
    problem: Passes, ranks: tuple[int, ...], own: list[int], unit: int, sizes: int, least: int, most: int
) -> "cp_model.CpModel":
    """(C1) to (C3) of the passes of these ranks alone."""
    from ortools.sat.python import cp_model

    native = cp_model.CpModel()
    T = native.new_int_var(least, most, "T")
    span = {o: round(problem.passes[o].seconds * unit) for o in own}
    tails = {o: round(problem.tails[o] * unit) for o in own}
    heads = {o: round(problem.heads[o] * unit) for o in own}
    x = {o: native.new_int_var(heads[o], max(heads[o], most - tails[o] - span[o]), f"x[{o}]") for o in own}
    for o in own:
        native.add(x[o] + span[o] + tails[o] <= T)
    for first, later, way in _ways(problem, own):
        native.add(x[later] >= x[first] + round(way * unit))  # C1
    for rank in ranks:
        of_rank = [o for o in own if problem.passes[o].rank == rank]
        native.add_no_overlap([native.new_fixed_size_interval_var(x[o], span[o], "") for o in of_rank])  # C2
        held = [o for o in of_rank if o in problem.holds]
        _memory(native, problem, x, held, round(problem.capacity_bytes[rank] * sizes), unit, sizes, T)
    native.minimize(T)
    return native


def _ways(problem: Passes, own: list[int]) -> list[tuple[int, int, float]]:
    """Pairs of passes and the way between their starts, without those that ways over a third pass give."""
    way_of = {o: problem.ways_from(o) for o in own}
    rows = []
    for first in own:
        behind = [o for o in own if o != first and o in way_of[first]]
        for later in behind:
            way = way_of[first][later]
            given = any(
                later in way_of[o] and way_of[first][o] + way_of[o][later] >= way - 1e-9 for o in behind if o != later
            )
            if not given:
                rows.append((first, later, way))
    return rows


def _unit(numbers: list[float], most: float) -> int | None:
    """How many units one is, so that all numbers are whole; None where that is too fine."""
    unit = lcm(*(Fraction(repr(float(number))).denominator for number in numbers))
    return unit if unit * most <= MOST_UNITS else None


@dataclass(frozen=True, slots=True)
class _Model:
    native: "cp_model.CpModel"
    starts: "list[cp_model.IntVar]"


def _build(problem: Passes, unit: int, sizes: int, least: int, horizon: int) -> _Model:
    """Variables and constraints, numbered as in the formulation; `horizon` is the longest schedule that is wanted."""
    from ortools.sat.python import cp_model

    native = cp_model.CpModel()
    span = [round(each.seconds * unit) for each in problem.passes]
    heads, tails = ([round(value * unit) for value in values] for values in (problem.heads, problem.tails))
    T = native.new_int_var(least, horizon, "T")
    x = [native.new_int_var(heads[o], max(heads[o], horizon - tails[o] - p), f"x[{o}]") for o, p in enumerate(span)]
    for o, each in enumerate(problem.passes):
        for earlier in each.before:
            native.add(x[o] >= x[earlier] + span[earlier])  # C1
        native.add(x[o] + span[o] + tails[o] <= T)
    for rank, capacity in enumerate(problem.capacity_bytes):
        own = [o for o, each in enumerate(problem.passes) if each.rank == rank]
        native.add_no_overlap([native.new_fixed_size_interval_var(x[o], span[o], "") for o in own])  # C2
        _memory(native, problem, x, [o for o in own if o in problem.holds], round(capacity * sizes), unit, sizes, T)
    native.minimize(T)
    return _Model(native, x)


def _memory(
    native: "cp_model.CpModel",
    problem: Passes,
    x: "Sequence[cp_model.IntVar] | Mapping[int, cp_model.IntVar]",
    holding: list[int],
    capacity: int,
    unit: int,
    sizes: int,
    T: "cp_model.IntVar",
) -> None:
    """(C3) on one rank, and what follows for all its pairs together."""
    intervals, demands, amounts = [], [], []
    for o in holding:
        partner = problem.passes[o].partner
        assert partner is not None
        end = x[partner] + round(problem.passes[partner].seconds * unit)
        size = native.new_int_var(round(problem.holds[o] * unit), 10**8, "")
        intervals.append(native.new_interval_var(x[o], size, end, ""))
        demands.append(round(problem.passes[o].held_bytes * sizes))
        amounts.append(demands[-1] * size)
    if intervals:
        native.add_cumulative(intervals, demands, capacity)
        native.add(sum(amounts) <= capacity * T)


def _searched(
    problem: Passes,
    orders: Orders,
    span_of: Span,
    bound: float,
    unit: int,
    sizes: int,
    limit_s: float,
    seed: int,
    threads: int,
) -> Improved:
    """Schedules no longer than that of `orders`."""
    from ortools.sat.python import cp_model

    span = span_of(orders)
    assert span is not None
    model = _build(problem, unit, sizes, ceil(bound * unit - 1e-6), round(span * unit))
    for o, begin in _starts(problem, orders).items():
        model.native.add_hint(model.starts[o], round(begin * unit))
    solver, name = timed_solver(max(limit_s, 0.1), seed, threads), f"ortools-cpsat {version()}"
    status = solver.solve(model.native)
    if status == cp_model.UNKNOWN:
        return Improved(orders, bound, "time_limit", name)
    begun = [solver.value(variable) for variable in model.starts]
    ranks = range(len(problem.capacity_bytes))
    scheduled = tuple(
        tuple(sorted((o for o, each in enumerate(problem.passes) if each.rank == rank), key=lambda o: (begun[o], o)))
        for rank in ranks
    )
    scheduled_s = span_of(scheduled)
    best = scheduled if scheduled_s is not None and scheduled_s <= span else orders
    stop = "finished" if status == cp_model.OPTIMAL else "time_limit"
    return Improved(best, max(bound, solver.best_objective_bound / unit), stop, name)


def _bounded(
    problem: Passes, best: Improved, span_of: Span, unit: int, sizes: int, limit_s: float, seed: int, threads: int
) -> Improved:
    """A better bound: schedules that are shorter by a unit are shown not to be, from below."""
    from ortools.sat.python import cp_model

    span = span_of(best.orders)
    assert span is not None
    shorter = round(span * unit) - 1
    least = ceil(best.bound * unit - 1e-6)
    if shorter < least:
        return Improved(best.orders, span, "finished", best.solver)
    model = _build(problem, unit, sizes, least, shorter)
    solver = timed_solver(max(limit_s, 0.1), seed, threads)
    solver.parameters.optimize_with_core = True
    status = solver.solve(model.native)
    if status == cp_model.INFEASIBLE:
        return Improved(best.orders, span, "finished", best.solver)
    proven = max(best.bound, min(solver.best_objective_bound, shorter) / unit)
    return Improved(best.orders, proven, "time_limit", best.solver)


def _starts(problem: Passes, orders: Orders) -> dict[int, float]:
    """When every pass starts."""
    ended: dict[int, float] = {}
    at, free = [0] * len(orders), [0.0] * len(orders)
    while len(ended) < len(problem.passes):
        for rank, order in enumerate(orders):
            while at[rank] < len(order) and all(e in ended for e in problem.passes[order[at[rank]]].before):
                each = problem.passes[order[at[rank]]]
                free[rank] = max([free[rank], *(ended[e] for e in each.before)]) + each.seconds
                ended[order[at[rank]]] = free[rank]
                at[rank] += 1
    return {o: end - problem.passes[o].seconds for o, end in ended.items()}
