"""How many units of each memory tier a prefix cache is given: the least cost of memory and of what waits for it.

Nested least-recently-used tiers hold stack distances [B_{k-1}, B_k): what a tier evicts falls to the next one.

Sets        k in K tiers, fastest first;  a in A accesses;  w in W windows of the trace
Parameters  d_a stack distance, c_a [s] to compute the block anew, w(a) the window of an access
            u_k blocks of a unit, U_k most units, p_k [USD/s] price of a block, f_k [s] to fetch a block
            m_k blocks that the tier gives in a window at most;  g [USD/s] price of what computes or waits;  T [s]
Variables   n_k in {0..U_k} units;  B_k = sum_{j <= k} u_j n_j, B_0 = 0
Minimise    sum_k p_k T u_k n_k + g (sum_k sum_{a: B_{k-1} <= d_a < B_k} f_k + sum_{a: d_a >= B_K} c_a)
(C1) |{a: w(a) = w, B_{k-1} <= d_a < B_k}| <= m_k   for k, w
The cost and (C1) of a tier depend on where it begins and ends alone: the optimum is a shortest path through the layers
of boundaries (k, B_k), O(sum_k |boundaries_{k-1}| U_k) after one pass over the trace.
K tier, A access, W window, B boundary.
"""

import math
import time
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats, Ints
from planner.errors import PlannerError
from planner.solvers.caches.stack_distances import NEVER
from planner.solvers.result import SolveResult, Status

WHERE = "tiers"
SOLVER = "shortest path over tier boundaries"


@dataclass(frozen=True, slots=True)
class Tier:
    """Memory that is bought in units; raises PlannerError for figures that cannot be."""

    name: str
    unit_blocks: int
    max_units: int
    price_per_block: float  # of a block for the time of the trace
    fetch_s: float  # of a block
    most_per_window: float  # blocks that all requests fetch from it in a window

    def __post_init__(self) -> None:
        if self.unit_blocks < 1:
            what = f"a unit of tier `{self.name}` has no room for a block"
            raise PlannerError(what, where=WHERE, hint="give a unit of one block or more")
        if self.max_units < 0 or not (self.price_per_block >= 0.0 and math.isfinite(self.price_per_block)):
            what = f"tier `{self.name}` has {self.max_units} units at {self.price_per_block:g} a block"
            raise PlannerError(what, where=WHERE, hint="give units and a price of 0 or more")
        if not (0.0 <= self.fetch_s < math.inf and self.most_per_window > 0.0):
            what = f"tier `{self.name}` gives nothing: {self.fetch_s:g} s a block, {self.most_per_window:g} in a window"
            raise PlannerError(what, where=WHERE, hint="give it a bandwidth above 0")


@dataclass(frozen=True, slots=True, eq=False)
class TierProblem:
    """Accesses with their stack distance, the time to compute them and their window; tiers, fastest first."""

    distance_A: Ints
    compute_s_A: Floats
    window_A: Ints
    tiers: tuple[Tier, ...]
    price_per_s: float  # of what computes a missing block, or waits for a fetched one


def cost_of(problem: TierProblem, units: tuple[int, ...]) -> float:
    """Of memory, computing and waiting; infinite where a tier gives more in a window than it can."""
    start, cost = 0, 0.0
    seconds_A = problem.compute_s_A.copy()
    for tier, count in zip(problem.tiers, units, strict=True):
        end = start + count * tier.unit_blocks
        held = (problem.distance_A >= start) & (problem.distance_A < end)
        if held.any() and np.bincount(problem.window_A[held]).max() > tier.most_per_window:
            return math.inf
        seconds_A[held] = tier.fetch_s
        cost += (end - start) * tier.price_per_block
        start = end
    return cost + problem.price_per_s * float(seconds_A.sum())


def cheapest_tiers(problem: TierProblem) -> SolveResult[tuple[int, ...]]:
    """The units of every tier, proven."""
    started_s = time.perf_counter()
    layers = _boundaries(problem.tiers)
    held = _Held(problem, layers[-1])
    value, units = held.nothing, np.zeros((1, 0), np.int64)
    best = np.zeros(1)
    for tier, starts, ends in zip(problem.tiers, layers, layers[1:], strict=False):
        reached = np.full(len(ends), np.inf)
        chosen = np.zeros((len(ends), units.shape[1] + 1), np.int64)
        for count in range(tier.max_units + 1):
            to = starts + count * tier.unit_blocks
            cost = best + held.costs(tier, starts, to)
            at = np.searchsorted(ends, to)
            better = cost < reached[at]
            reached[at[better]] = cost[better]
            chosen[at[better], :-1], chosen[at[better], -1] = units[better], count
        best, units = reached, chosen
    value = float(best.min())
    picked = tuple(int(count) for count in units[int(np.argmin(best))])
    objective = cost_of(problem, picked)
    assert math.isclose(objective, held.nothing + value, rel_tol=1e-9, abs_tol=1e-9)
    spent_s = time.perf_counter() - started_s
    return SolveResult(Status.OPTIMAL, "finished", picked, objective, objective, spent_s, SOLVER)


def _boundaries(tiers: tuple[Tier, ...]) -> list[Ints]:
    """Where each tier may begin, and where the last may end, in order. [K + 1, B]"""
    layers = [np.zeros(1, np.int64)]
    for tier in tiers:
        steps = tier.unit_blocks * np.arange(tier.max_units + 1)
        layers.append(np.unique(np.add.outer(layers[-1], steps)))
    return layers


class _Held:
    """What lies below each boundary: accesses, those of each window, and the seconds to compute them."""

    def __init__(self, problem: TierProblem, boundary_B: Ints) -> None:
        self.price_per_s = problem.price_per_s
        self.nothing = problem.price_per_s * float(problem.compute_s_A.sum())
        self.boundary_B = boundary_B
        known = problem.distance_A != NEVER
        at = np.searchsorted(boundary_B, problem.distance_A[known], side="right")  # the first boundary above
        size, windows = len(boundary_B) + 1, int(problem.window_A.max(initial=0)) + 1
        self.count_B = np.cumsum(np.bincount(at, minlength=size))[:-1]
        self.compute_s_B = np.cumsum(np.bincount(at, problem.compute_s_A[known], minlength=size))[:-1]
        cells = np.bincount(problem.window_A[known] * size + at, minlength=windows * size)
        self.count_WB = np.cumsum(cells.reshape(windows, size), axis=1)[:, :-1]
        self.most_in_window = int(self.count_WB.max(initial=0))

    def costs(self, tier: Tier, start_B: Ints, end_B: Ints) -> Floats:
        """What a tier from each start to its end adds; infinite where (C1) does not hold."""
        low, high = np.searchsorted(self.boundary_B, start_B), np.searchsorted(self.boundary_B, end_B)
        fetched = self.count_B[high] - self.count_B[low]
        seconds = tier.fetch_s * fetched - (self.compute_s_B[high] - self.compute_s_B[low])
        cost = (end_B - start_B) * tier.price_per_block + self.price_per_s * seconds
        if self.most_in_window <= tier.most_per_window:
            return np.asarray(cost)
        most_B = (self.count_WB[:, high] - self.count_WB[:, low]).max(axis=0)
        return np.where(most_B > tier.most_per_window, np.inf, cost)
