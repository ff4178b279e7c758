"""Linear partitioning (contiguous partition) of items into stages with memory, each under one of several options.

The slowest stage is made as fast as it can be; of all such partitions the one with the least sum of squared stage times
is taken. An option trades time of an item for bytes that it holds, so that inside a stage the choice is a knapsack.

Sets        l in L items, s in S stages, o in O options
Parameters  t_ol [s] time of l under o,  h_ol [bytes] of l in flight for each unit of depth,
            g_l [bytes] of l resident in any case
            d_s depth of a stage,  e_s [s] and E_s [bytes] more on a stage,  M_s [bytes] capacity,  n_s least items
            g'_l, h'_l, M'_s the same of a second memory, where there is one, which binds likewise
Recurrence  best(s, j) = min over i <= j - n_s of max(best(s - 1, i), c(s, i, j)),   in O(S L^2)
            c(s, i, j) = e_s + least sum of t_ol over items i to j - 1 with E_s + sum of g_l + d_s sum of h_ol <= M_s,
            read off the Pareto frontier of (bytes, time) of the items, which grows item by item
"""

import time
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats, Ints
from planner.errors import PlannerError
from planner.solvers.pareto import DUST, efficient
from planner.solvers.result import SolveResult, Status

SOLVER = "partition dynamic program"


@dataclass(frozen=True, slots=True, eq=False)
class SecondMemory:
    """Bytes of each item beside those of the first memory, and room for them. Shape suffixes as of the problem."""

    in_flight_L: Floats
    fixed_L: Floats
    capacity_S: Floats


@dataclass(frozen=True, slots=True, eq=False)
class PartitionProblem:
    """Shape suffixes: O option, L item, S stage."""

    time_OL: Floats
    in_flight_OL: Floats
    fixed_L: Floats
    depth_S: Floats
    more_time_S: Floats
    more_bytes_S: Floats
    capacity_S: Floats
    least_S: Ints
    time_SL: Floats | None = None  # of items on each stage where stages differ in speed; there is one option then
    second: SecondMemory | None = None  # there is one option then

    def __post_init__(self) -> None:
        stages = {len(x) for x in (self.depth_S, self.more_time_S, self.more_bytes_S, self.capacity_S, self.least_S)}
        if (
            len(stages) != 1
            or self.time_OL.shape != self.in_flight_OL.shape
            or self.time_OL.shape[1:] != self.fixed_L.shape
        ):
            raise PlannerError("figures differ in number", where="partition", hint="give each item and stage its own")
        apart = self.time_SL
        if apart is not None and (apart.shape != (self.num_stages, self.num_items) or len(self.time_OL) != 1):
            raise PlannerError(
                "times by stage differ in number",
                where="partition",
                hint="give a time for each stage and item, and one option",
            )
        if self.second is not None and len(self.time_OL) != 1:
            what = "a second memory with a choice among options"
            raise PlannerError(what, where="partition", hint="give one option")
        arrays = [self.time_OL, self.in_flight_OL, self.fixed_L, self.depth_S, self.more_time_S, self.more_bytes_S]
        arrays += [] if apart is None else [apart]
        if any((array < 0).any() or not np.isfinite(array).all() for array in arrays):
            raise PlannerError("times and bytes must be at least 0", where="partition", hint="fix the negative one")

    @property
    def num_items(self) -> int:
        return len(self.fixed_L)

    @property
    def num_stages(self) -> int:
        return len(self.depth_S)


@dataclass(frozen=True, slots=True)
class Partition:
    """Items of each stage, and the option of each item."""

    counts: tuple[int, ...]
    options: tuple[int, ...]


def stage_times(problem: PartitionProblem, partition: Partition) -> Floats:
    """Time of every stage [S]."""
    if problem.time_SL is not None:
        stage_L = np.repeat(np.arange(problem.num_stages), partition.counts)
        time_L = problem.time_SL[stage_L, np.arange(problem.num_items)]
    else:
        time_L = problem.time_OL[list(partition.options), np.arange(problem.num_items)]
    edges = np.concatenate([[0], np.cumsum(partition.counts)])
    summed = np.concatenate([[0.0], np.cumsum(time_L)])
    return np.asarray(problem.more_time_S + (summed[edges[1:]] - summed[edges[:-1]]))


def partition(problem: PartitionProblem) -> SolveResult[Partition]:
    """The partition with the least slowest stage, proven; INFEASIBLE where no partition fits."""
    from planner.solvers.compiled.partition import cut

    started_s = time.perf_counter()
    frontiers = _frontiers(problem) if len(problem.time_OL) > 1 else None
    cost_SII = _single_costs(problem) if frontiers is None else _costs(problem, frontiers)
    count_S, bottleneck = cut(cost_SII, problem.least_S.astype(np.int64))
    if count_S[0] < 0:
        return SolveResult(
            Status.INFEASIBLE, "finished", None, None, None, time.perf_counter() - started_s, solver=SOLVER
        )
    counts = tuple(int(count) for count in count_S)
    options = (0,) * problem.num_items if frontiers is None else _options(problem, frontiers, counts)
    solution = Partition(counts, options)
    value = float(stage_times(problem, solution).max())
    took_s = time.perf_counter() - started_s
    return SolveResult(
        Status.OPTIMAL, "finished", solution, value, min(float(bottleneck), value), took_s, solver=SOLVER
    )


def _single_costs(problem: PartitionProblem) -> Floats:
    """c(s, i, j) where there is nothing to choose."""
    I = problem.num_items + 1
    time_SL = problem.time_OL if problem.time_SL is None else problem.time_SL
    time_SI = np.concatenate([np.zeros((len(time_SL), 1)), np.cumsum(time_SL, axis=1)], axis=1)
    cost_SII = np.full((problem.num_stages, I, I), np.inf)
    upper = np.triu(np.ones((I, I), np.bool_))
    room_S = problem.capacity_S * (1.0 + DUST) - problem.more_bytes_S
    memories = [(_runs(problem.fixed_L), _runs(problem.in_flight_OL[0]), room_S)]
    if (second := problem.second) is not None:
        memories.append((_runs(second.fixed_L), _runs(second.in_flight_L), second.capacity_S * (1.0 + DUST)))
    for stage, depth in enumerate(problem.depth_S):
        time_I = time_SI[stage if problem.time_SL is not None else 0]
        time_II = time_I[None, :] - time_I[:, None]
        fits = upper.copy()
        for fixed_II, in_flight_II, capacity_S in memories:
            fits &= fixed_II + depth * in_flight_II <= capacity_S[stage]
        cost_SII[stage][fits] = problem.more_time_S[stage] + np.maximum(time_II[fits], 0.0)
    return cost_SII


def _runs(each_L: Floats) -> Floats:
    """The sum over every run of items [first, end]."""
    summed_I = np.concatenate([[0.0], np.cumsum(each_L)])
    return np.asarray(summed_I[None, :] - summed_I[:, None])


@dataclass(frozen=True, slots=True, eq=False)
class Frontier:
    """Undominated choices for a run of items: bytes rise, time falls; `last_P` is the last item's option."""

    in_flight_P: Floats
    time_P: Floats
    last_P: Ints
    from_P: Ints  # which point of the frontier of the items before it continues


def _frontiers(problem: PartitionProblem) -> list[list[Frontier]]:
    """By first item i: the frontiers of items i to j - 1 for j = i, i + 1, ..."""
    L = problem.num_items
    empty = Frontier(np.zeros(1), np.zeros(1), np.full(1, -1), np.full(1, -1))
    rows = []
    for first in range(L + 1):
        row = [empty]
        for item in range(first, L):
            row.append(_grown(row[-1], problem.in_flight_OL[:, item], problem.time_OL[:, item]))
        rows.append(row)
    return rows


def _grown(before: Frontier, in_flight_O: Floats, time_O: Floats) -> Frontier:
    """The frontier with one item more."""
    P, O = len(before.in_flight_P), len(in_flight_O)
    in_flight = (before.in_flight_P[:, None] + in_flight_O[None, :]).ravel()
    seconds = (before.time_P[:, None] + time_O[None, :]).ravel()
    chosen = efficient(in_flight, seconds)
    return Frontier(
        in_flight[chosen], seconds[chosen], np.tile(np.arange(O), P)[chosen], np.repeat(np.arange(P), O)[chosen]
    )


def _costs(problem: PartitionProblem, frontiers: list[list[Frontier]]) -> Floats:
    """c(s, i, j) by the knapsack inside each stage."""
    L, S = problem.num_items, problem.num_stages
    cost_SII = np.full((S, L + 1, L + 1), np.inf)
    for first in range(L + 1):
        for place, frontier in enumerate(frontiers[first]):
            point_S = _points(problem, frontier, first, first + place)
            fits = point_S >= 0
            cost_SII[fits, first, first + place] = problem.more_time_S[fits] + frontier.time_P[point_S[fits]]
    return cost_SII


def _points(problem: PartitionProblem, frontier: Frontier, first: int, end: int) -> Ints:
    """The fastest point of the frontier that fits each stage [S]; -1 where none does."""
    room_S = problem.capacity_S * (1.0 + DUST) - problem.more_bytes_S - problem.fixed_L[first:end].sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        most_S = np.where(problem.depth_S > 0, room_S / np.maximum(problem.depth_S, 1e-300), np.inf)
    found_S = np.searchsorted(frontier.in_flight_P, most_S * (1.0 + DUST), side="right") - 1
    return np.where(room_S >= 0, found_S, -1)


def _options(problem: PartitionProblem, frontiers: list[list[Frontier]], counts: tuple[int, ...]) -> tuple[int, ...]:
    """The option of each item, walked back along the frontiers of its stage."""
    chosen: list[int] = []
    first = 0
    for stage, count in enumerate(counts):
        row = frontiers[first]
        point = int(_points(problem, row[count], first, first + count)[stage])
        own = []
        for place in range(count, 0, -1):
            own.append(int(row[place].last_P[point]))
            point = int(row[place].from_P[point])
        chosen += reversed(own)
        first += count
    return tuple(chosen)
