"""Passes of unlike modalities on the ranks of a pipeline: the shortest schedule within the memory of each rank.

Source: DIP, formerly PipeWeaver (arXiv:2504.14145, ASPLOS 2026): segments of each modality in sub-micro-batches, a
tree search over their orders, memory by a small program.
Sets        o in passes, each on one rank r(o); o' in before(o); pairs (f, b) of a forward and its backward pass
Parameters  p_o seconds; m_f bytes held from the start of f to the end of b; C_r bytes of rank r
Variables   an order of the passes of each rank; every pass starts as early as it can, at x_o;  T seconds
Minimise    T >= x_o + p_o
(C1) x_o >= x_o' + p_o' for o' in before(o)
(C2) passes of a rank do not overlap
(C3) sum of m_f over pairs that are begun and not ended <= C_r, at any time on any rank
Bound       for each rank, the least way to it, its work and the least way behind it; and bytes times the least time
            between the start of f and the end of b, over C_r, likewise; then what CP-SAT proves, of the first
            rank alone and with the last, whose passes lie as far apart as the way between them takes, and of all
Method      annealing of orders, a pass alone or those of a sub-micro-batch on several ranks together; then CP-SAT: of
            few passes at once on all, else first on these two for the bound.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from planner.arrays import Floats, Ints
from planner.errors import PlannerError
from planner.solvers.result import SolveResult, Status

WHERE, SOLVER = "passes", "annealing"
ANNEALED, MANY = (0.1, 0.3), 96  # of the time, for up to so many passes and for more: CP-SAT ends on few
RANKS = 0.7  # of the time, for the bound of the first and last rank of many passes
STEPS, MOST_STARTS = 2_000_000, 24  # the first four starts take a fifth of the steps


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass; `partner` is the backward pass of a forward one; `group` is common to those that differ in rank alone."""

    rank: int
    seconds: float
    before: tuple[int, ...] = ()
    partner: int | None = None
    held_bytes: float = 0.0  # from the start of a forward pass to the end of its partner
    group: int = 0


@dataclass(frozen=True)
class PassProblem:
    """Passes in an order in which each follows those before it, which also is one that fits; bytes of each rank.

    `orders` is a schedule to begin with: passes of each rank.
    """

    passes: tuple[Pass, ...]
    capacity_bytes: tuple[float, ...]
    orders: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        ranks = len(self.capacity_bytes)
        if not self.passes or any(not 0 <= each.rank < ranks or each.seconds < 0 for each in self.passes):
            raise PlannerError("a pass on no rank, or below no time", where=WHERE, hint=f"ranks are 0 to {ranks - 1}")
        for index, each in enumerate(self.passes):
            if each.partner is not None and self.passes[each.partner].rank != each.rank:
                raise PlannerError(f"pass {index} has a partner on another rank", where=WHERE, hint="pair them by rank")
            if each.held_bytes > self.capacity_bytes[each.rank]:
                raise PlannerError(
                    f"pass {index} holds {each.held_bytes:g} bytes of {self.capacity_bytes[each.rank]:g} of its rank",
                    where=WHERE,
                    hint=f"the nearest capacity that works is {each.held_bytes:g}",
                )
        if schedule_s(self, self.orders) is None:
            raise PlannerError("the first orders are no schedule that fits", where=WHERE, hint="give one that does")

    @cached_property
    def by_way(self) -> tuple[int, ...]:
        """Passes, each behind those before it."""
        waits = [len(each.before) for each in self.passes]
        ready = [index for index, count in enumerate(waits) if not count]
        order = []
        while ready:
            order.append(ready.pop())
            for later in self.behind[order[-1]]:
                waits[later] -= 1
                if not waits[later]:
                    ready.append(later)
        return tuple(order)

    @cached_property
    def behind(self) -> tuple[tuple[int, ...], ...]:
        """Of each pass, those that wait for it."""
        rows: list[list[int]] = [[] for _ in self.passes]
        for index, each in enumerate(self.passes):
            for earlier in each.before:
                rows[earlier].append(index)
        return tuple(map(tuple, rows))

    @cached_property
    def heads(self) -> tuple[float, ...]:
        """Seconds before each pass can start."""
        heads = [0.0] * len(self.passes)
        for index in self.by_way:
            heads[index] = max((heads[e] + self.passes[e].seconds for e in self.passes[index].before), default=0.0)
        return tuple(heads)

    @cached_property
    def tails(self) -> tuple[float, ...]:
        """Seconds behind the end of each pass."""
        tails = [0.0] * len(self.passes)
        for index in reversed(self.by_way):
            tails[index] = max((tails[e] + self.passes[e].seconds for e in self.behind[index]), default=0.0)
        return tuple(tails)

    def ways_from(self, first: int) -> dict[int, float]:
        """Seconds from the start of a pass to the start of those behind it, at least."""
        way = {first: 0.0}
        for index in self.by_way:
            for earlier in self.passes[index].before:
                if earlier in way:
                    way[index] = max(way.get(index, 0.0), way[earlier] + self.passes[earlier].seconds)
        return way

    @cached_property
    def holds(self) -> dict[int, float]:
        """Of each forward pass that holds bytes, seconds from its start to the end of its partner, at least."""
        holds = {}
        for first, each in enumerate(self.passes):
            if each.partner is None or each.held_bytes <= 0:
                continue
            way = self.ways_from(first)
            holds[first] = way.get(each.partner, each.seconds) + self.passes[each.partner].seconds
        return holds


Orders = tuple[tuple[int, ...], ...]
"""Passes of each rank in the order in which they run."""


def best_schedule(
    problem: PassProblem,
    *,
    time_limit_s: float = 50.0,
    starts: int = MOST_STARTS,
    seed: int = 0,
    exact: bool = True,
) -> SolveResult[Orders]:
    """Orders with a short schedule, and the bound; proven where CP-SAT came to its end.

    exact: False leaves CP-SAT and clocks out: the same orders on every machine, in the time of `starts`.
    """
    from planner.solvers.backends.cpsat_passes import bound_of_ranks, improve

    started = time.perf_counter()
    bound = work_bound_s(problem)
    many = len(problem.passes) > MANY
    share = ANNEALED[many]
    orders = _annealed(problem, bound, starts, seed, share * time_limit_s if exact else math.inf)
    solver, stop = SOLVER, "finished"
    if exact and many:
        bound = max(bound, bound_of_ranks(problem, _span(problem, orders), bound, RANKS * time_limit_s, seed))
        share += RANKS
    if exact and _span(problem, orders) > bound * (1.0 + 1e-9):
        left_s = (1.0 - share) * time_limit_s
        better = improve(problem, orders, partial(schedule_s, problem), bound, time_limit_s=left_s, seed=seed)
        orders, bound, stop, solver = better.orders, better.bound, better.stop_reason, f"{SOLVER}, {better.solver}"
    span_s = _span(problem, orders)
    bound = min(bound, span_s)
    status = Status.OPTIMAL if bound >= span_s * (1.0 - 1e-9) else Status.FEASIBLE
    return SolveResult(status, stop, orders, span_s, bound, time.perf_counter() - started, solver)


def _span(problem: PassProblem, orders: Orders) -> float:
    span_s = schedule_s(problem, orders)
    assert span_s is not None
    return span_s


def schedule_s(problem: PassProblem, orders: Sequence[Sequence[int]]) -> float | None:
    """Seconds of orders; None where they leave passes out, wait for each other, or hold more than a rank has."""
    return span_s(problem.passes, problem.capacity_bytes, orders)


def span_s(passes: Sequence[Pass], capacity_bytes: tuple[float, ...], orders: Sequence[Sequence[int]]) -> float | None:
    """The same of passes that are no problem yet."""
    if sorted(index for order in orders for index in order) != list(range(len(passes))):
        return None
    ended: dict[int, float] = {}
    at, free = [0] * len(orders), [0.0] * len(orders)
    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(orders):
            while at[rank] < len(order) and all(e in ended for e in passes[order[at[rank]]].before):
                each = passes[order[at[rank]]]
                if each.rank != rank:
                    return None
                free[rank] = max([free[rank], *(ended[e] for e in each.before)]) + each.seconds
                ended[order[at[rank]]] = free[rank]
                at[rank] += 1
                moved = True
    fits = all(_fits(passes, capacity_bytes[rank], order) for rank, order in enumerate(orders))
    return max(free) if fits and len(ended) == len(passes) else None


def _fits(passes: Sequence[Pass], capacity_bytes: float, order: Sequence[int]) -> bool:
    """(C3) on one rank, whose passes run one after the other."""
    given_back = {each.partner: each.held_bytes for each in passes if each.partner is not None}
    held = 0.0
    for index in order:
        held += passes[index].held_bytes
        if held > capacity_bytes * (1.0 + 1e-12):
            return False
        held -= given_back.get(index, 0.0)
    return True


def work_bound_s(problem: PassProblem) -> float:
    """Seconds that no orders are below."""
    bounds = [0.0]
    for rank, capacity in enumerate(problem.capacity_bytes):
        own = [index for index, each in enumerate(problem.passes) if each.rank == rank]
        if own:
            work = sum(problem.passes[index].seconds for index in own)
            bounds.append(min(problem.heads[i] for i in own) + work + min(problem.tails[i] for i in own))
        holding = [index for index in own if index in problem.holds]
        if holding and capacity > 0:
            amount = sum(problem.passes[i].held_bytes * problem.holds[i] for i in holding)
            ends = [problem.tails[problem.passes[i].partner or 0] for i in holding]
            bounds.append(min(problem.heads[i] for i in holding) + amount / capacity + min(ends))
    return max(
        *bounds, max(h + t + p.seconds for h, t, p in zip(problem.heads, problem.tails, problem.passes, strict=True))
    )


@dataclass(frozen=True, slots=True)
class _Arrays:
    """The problem as compiled loops read it; passes before pass o stand in before_E[start_O[o] : start_O[o + 1]]."""

    duration_O: Floats
    held_O: Floats  # negative where a backward pass gives back
    start_O: Ints
    before_E: Ints
    group_O: Ints
    capacity_R: Floats


def _arrays(problem: PassProblem) -> _Arrays:
    held = np.array([each.held_bytes for each in problem.passes])
    for each in problem.passes:
        if each.partner is not None:
            held[each.partner] -= each.held_bytes
    counts = np.array([0, *(len(each.before) for each in problem.passes)], np.int64)
    return _Arrays(
        np.array([each.seconds for each in problem.passes], float),
        held,
        np.cumsum(counts),
        np.array([earlier for each in problem.passes for earlier in each.before] or [0], np.int64),
        np.array([each.group for each in problem.passes], np.int64),
        np.array(problem.capacity_bytes, float),
    )


def _annealed(problem: PassProblem, bound_s: float, starts: int, seed: int, limit_s: float) -> Orders:
    """The best of some starts; after the first four, every other one begins at the best so far."""
    from planner.solvers.compiled.samples.passes import anneal_passes

    arrays = _arrays(problem)
    count_R = np.array([len(order) for order in problem.orders], np.int64)
    best, best_s = problem.orders, _span(problem, problem.orders)
    begun = time.process_time()
    most = min(STEPS, 30_000 * len(problem.passes))
    for start in range(starts):
        steps = most // 5 if start < 4 else most
        rows = np.zeros((len(count_R), max(1, int(count_R.max()))), np.int64)
        for rank, order in enumerate(best if start >= 4 and start % 2 else problem.orders):
            rows[rank, : len(order)] = order
        anneal_passes(
            *(rows, count_R, arrays.duration_O, arrays.held_O, arrays.capacity_R, arrays.start_O, arrays.before_E),
            *(arrays.group_O, int(arrays.group_O.max()) + 1, steps, seed * MOST_STARTS + start),
            (0.02, 0.01, 0.03, 0.005)[start % 4],
        )
        orders = tuple(tuple(map(int, row[:count])) for row, count in zip(rows, count_R, strict=True))
        span_s = schedule_s(problem, orders)
        if span_s is not None and span_s < best_s:
            best, best_s = orders, span_s
        if best_s <= bound_s * (1.0 + 1e-9) or time.process_time() - begun > limit_s:
            break
    return best
