"""Unlike micro-batches on the replicas of a 1F1B pipeline: which takes which, and in which order.

Source: DistTrain (SIGCOMM 2025, arXiv:2408.04275), section 5, reorders within and between micro-batches by rules.
Sets        n in N micro-batches, d in D replicas, r in R ranks of a pipeline
Parameters  f_nr, b_nr [s] of the forward and backward pass of micro-batch n on rank r
Variables   for each replica an order of N / D micro-batches
Minimise    the longest span of a replica under 1F1B (rank r runs R - 1 - r forward passes ahead), without transfers
Bound       for each rank, the mean over replicas of its work, the way to it of the D shortest first micro-batches, and
            the way back of the D shortest last ones
Method      annealing by exchanges; where replicas take few, the best order of every subset depth first, with the work
            that is left on each rank as bound, and the best cover of all micro-batches by subsets: exact.
"""

import itertools
import math
import time
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats, Ints
from planner.errors import PlannerError
from planner.solvers.result import SolveResult, Status

WHERE, SOLVER = "sample orders", "annealing, then orders of subsets depth first"
MOST_SUBSETS = 5_000
MOST_STEPS, WORK_STEPS = 400_000, 24_000_000  # of annealing: of each start, and passes over all starts
STARTS = 4

Orders = tuple[tuple[int, ...], ...]
"""Of each replica, its micro-batches in order."""


@dataclass(frozen=True, slots=True)
class SampleOrders:
    """Micro-batches, which must divide by the replicas."""

    forward_NR: Floats
    backward_NR: Floats
    replicas: int

    def __post_init__(self) -> None:
        number = len(self.forward_NR)
        if self.forward_NR.ndim != 2 or self.forward_NR.shape != self.backward_NR.shape or not self.forward_NR.size:
            raise PlannerError(
                "passes are no table of micro-batches and ranks", where=WHERE, hint="give one time a rank"
            )
        if min(self.forward_NR.min(), self.backward_NR.min()) < 0:
            raise PlannerError("a pass takes less than no time", where=WHERE, hint="give seconds of 0 or more")
        if self.replicas < 1 or number % self.replicas:
            near = max(1, round(number / max(self.replicas, 1))) * max(self.replicas, 1)
            raise PlannerError(
                f"{number} micro-batches are no equal parts of {self.replicas} replicas",
                where=WHERE,
                hint=f"the nearest number that works is {near}",
            )

    @property
    def each(self) -> int:
        """Micro-batches of a replica."""
        return len(self.forward_NR) // self.replicas


def best_orders(
    problem: SampleOrders, *, starts: int = STARTS, seed: int = 0, most_nodes: int = 1_200_000
) -> SolveResult[Orders]:
    """Orders with a short longest span; proven where subsets are few enough for `most_nodes` of the search."""
    started = time.perf_counter()
    order_DK, span_s = _annealed(problem, starts, seed)
    bound_s, stop = min(work_bound_s(problem), span_s), "finished"
    if math.comb(len(problem.forward_NR), problem.each) <= MOST_SUBSETS:
        better = _exact(problem, span_s, most_nodes)
        stop = "node_limit" if better is None else "finished"
        if better is not None:
            order_DK = better or order_DK
            span_s = longest_span_s(problem, order_DK)
            bound_s = span_s
    status = Status.OPTIMAL if bound_s >= span_s * (1.0 - 1e-9) else Status.FEASIBLE
    return SolveResult(status, stop, order_DK, span_s, bound_s, time.perf_counter() - started, SOLVER)


def longest_span_s(problem: SampleOrders, orders: Orders) -> float:
    """Seconds of the replica that takes longest."""
    return max(_span_s(problem, order) for order in orders)


def _span_s(problem: SampleOrders, order: tuple[int, ...]) -> float:
    from planner.solvers.compiled.samples.orders import span

    R = problem.forward_NR.shape[1]
    scratch = np.zeros((3, R))
    return float(span(problem.forward_NR, problem.backward_NR, np.array(order, np.int64), len(order), *scratch))


def dealt_orders(problem: SampleOrders) -> Orders:
    """Micro-batches dealt to the replicas in turn."""
    number, replicas = len(problem.forward_NR), problem.replicas
    return tuple(tuple(range(replica, number, replicas)) for replica in range(replicas))


def work_bound_s(problem: SampleOrders) -> float:
    """Seconds that no orders are below."""
    work_R = (problem.forward_NR + problem.backward_NR).sum(axis=0)
    D = problem.replicas
    to_NR = np.cumsum(problem.forward_NR, axis=1) - problem.forward_NR
    back_NR = np.cumsum(problem.backward_NR, axis=1) - problem.backward_NR
    ways_R = np.sort(to_NR, axis=0)[:D].sum(axis=0) + np.sort(back_NR, axis=0)[:D].sum(axis=0)
    alone = (problem.forward_NR + problem.backward_NR).sum(axis=1).max()
    return float(max(((work_R + ways_R) / D).max(), alone))


def _annealed(problem: SampleOrders, starts: int, seed: int) -> tuple[Orders, float]:
    """The best of some starts, each from its own deal."""
    from planner.solvers.compiled.samples.orders import anneal

    N, R = problem.forward_NR.shape
    steps = min(MOST_STEPS, 20_000 * N, 50 * math.factorial(N), WORK_STEPS // (STARTS * problem.each * R))
    steps = max(2_000, steps)
    best, best_s = None, math.inf
    for start in range(starts):
        deal = np.random.default_rng([seed, start]).permutation(N).reshape(problem.replicas, -1)
        order_DK = np.ascontiguousarray(deal, np.int64)
        span_s = float(anneal(problem.forward_NR, problem.backward_NR, order_DK, steps, seed * STARTS + start))
        if span_s < best_s:
            best, best_s = order_DK, span_s
    assert best is not None
    orders = tuple(tuple(int(sample) for sample in row) for row in best)
    return orders, longest_span_s(problem, orders)


def _exact(problem: SampleOrders, cutoff_s: float, most_nodes: int) -> Orders | None:
    """Orders all below `cutoff_s` whose longest is least; empty where there are none, None where nodes ran out."""
    from planner.solvers.compiled.samples.orders import best_order

    N, each = len(problem.forward_NR), problem.each
    span_of: dict[int, tuple[float, Ints]] = {}
    left = most_nodes
    for own in itertools.combinations(range(N), each):
        order = np.zeros(each, np.int64)
        span_s, nodes = best_order(problem.forward_NR, problem.backward_NR, np.array(own), cutoff_s, left, order)
        left -= int(nodes)
        if left <= 0:
            return None
        if span_s < cutoff_s:
            span_of[sum(1 << sample for sample in own)] = float(span_s), order
    cover = _cover((1 << N) - 1, span_of)
    return tuple(tuple(int(sample) for sample in span_of[mask][1]) for mask in cover)


def _cover(whole: int, span_of: dict[int, tuple[float, Ints]]) -> tuple[int, ...]:
    """Subsets that hold every micro-batch once and whose longest span is least; empty where there are none."""
    containing: dict[int, list[int]] = {}
    for mask in sorted(span_of, key=lambda mask: span_of[mask][0]):
        containing.setdefault(mask & -mask, []).append(mask)
    known: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}

    def best(left: int) -> tuple[float, tuple[int, ...]]:
        if left not in known:
            value: tuple[float, tuple[int, ...]] = (math.inf, ())
            for mask in containing.get(left & -left, ()):
                if mask & left == mask and span_of[mask][0] < value[0]:
                    rest_s, rest = best(left & ~mask)
                    longest_s = max(span_of[mask][0], rest_s)
                    if longest_s < value[0]:
                        value = longest_s, (mask, *rest)
            known[left] = value
        return known[left]

    return best(whole)[1]
