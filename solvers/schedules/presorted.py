"""Linear partitioning over unequal workers: items sorted by length, cut into runs, the slowest run as short as can be.

Source: Heddle (arXiv 2603.28101), trajectory placement: lengths presorted, neighbours grouped.

Sets        i in I items,  t in T kinds of workers
Parameters  l_i >= 0 length of item i,  c_t workers of kind t,  a_tn > 0 seconds a unit of length where n items share a
            worker of kind t, not falling in n
Variables   for every worker of kind t a set of items; n its size
Minimise    z
(C1) every item is in one set
(C2) a_tn max_{i in set} l_i <= z for every set that is not empty
Some optimum takes neighbours in the order of falling length: handing the longest set its n longest items, in exchange
for what it gives up, lengthens no other set. For a given z the longest prefix that k workers can take is a dynamic
program over how many of each kind are used, r(k) = max_t r(k - e_t) + max {n : a_tn l_(r + 1) <= z}: a longer prefix is
never worse, since the items left are fewer and none longer. z is found by bisection,
O(log(1 / eps) |T| prod_t (c_t + 1)).
"""

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats, Ints
from planner.errors import PlannerError
from planner.solvers.result import SolveResult, Status

TOLERANCE = 1e-12


@dataclass(frozen=True, slots=True)
class SortedRun:
    """Items `first` to `last` (exclusive) in the order of falling length go to one worker of a kind."""

    kind: int
    first: int
    last: int


def solve_presorted(
    lengths: Floats, workers: Sequence[int], rates: Sequence[Floats]
) -> SolveResult[tuple[SortedRun, ...]]:
    """Runs of the items in falling order of `lengths`; `rates[t][n - 1]` is a_tn. Raises PlannerError for bad data."""
    started = time.perf_counter()
    sorted_l = np.sort(np.asarray(lengths, float))[::-1]
    _validate(sorted_l, workers, rates)
    if not len(sorted_l):
        return SolveResult(Status.OPTIMAL, "finished", (), 0.0, 0.0, time.perf_counter() - started, "presorted")
    low = max(min(float(rate[0]) for rate in rates) * float(sorted_l[0]) * (1 - TOLERANCE), 0.0)
    runs = _runs(low, sorted_l, workers, rates)
    if runs is None:
        high = max(float(rate[-1]) for rate in rates) * float(sorted_l[0]) * (1 + 1e-9)
        runs = _runs(high, sorted_l, workers, rates)
        assert runs is not None  # one worker may take all
        high = _slowest(runs, sorted_l, rates)
        while high - low > TOLERANCE * high:
            middle = 0.5 * (low + high)
            shorter = _runs(middle, sorted_l, workers, rates)
            if shorter is None:
                low = middle
            else:
                runs, high = shorter, min(_slowest(shorter, sorted_l, rates), middle)
    objective = _slowest(runs, sorted_l, rates)
    took = time.perf_counter() - started
    return SolveResult(Status.OPTIMAL, "finished", runs, objective, min(low, objective), took, "presorted")


def _validate(sorted_l: Floats, workers: Sequence[int], rates: Sequence[Floats]) -> None:
    if len(workers) != len(rates) or not any(workers):
        raise PlannerError("needs one curve for each kind, and a worker", where="workers", hint="give both lists alike")
    for kind, rate in enumerate(rates):
        rising = len(rate) >= len(sorted_l) and np.all(np.diff(rate) >= 0) and np.all(np.asarray(rate) > 0)
        if not rising:
            raise PlannerError(
                f"curve {kind} must be positive, not fall, and reach {len(sorted_l)} items",
                where=f"rates.{kind}",
                hint="give seconds a unit of length for 1, 2, ... items",
            )
    if len(sorted_l) and sorted_l[-1] < 0:
        raise PlannerError(f"length {sorted_l[-1]:g} is negative", where="lengths", hint="give lengths of 0 or more")


def _runs(
    limit: float, sorted_l: Floats, workers: Sequence[int], rates: Sequence[Floats]
) -> tuple[SortedRun, ...] | None:
    """Runs of at most `limit` that take all items, or None."""
    taken = [_taken(limit, sorted_l, rate) for rate in rates]
    reached = {tuple(0 for _ in workers): (0, -1)}
    for used in itertools.product(*(range(count + 1) for count in workers)):
        best = reached.get(used, (-1, -1))
        for kind, count in enumerate(used):
            if count:
                start = reached[(*used[:kind], count - 1, *used[kind + 1 :])][0]
                best = max(best, (start + int(taken[kind][start]), kind))
        reached[used] = best
        if best[0] >= len(sorted_l):
            return _traced(used, reached)
    return None


def _taken(limit: float, sorted_l: Floats, rate: Floats) -> Ints:
    """How many items a worker takes from each start on within `limit`; 0 from behind the last."""
    with np.errstate(divide="ignore"):
        allowed = np.where(sorted_l > 0, limit / np.maximum(sorted_l, 1e-300), np.inf)
    count = np.searchsorted(np.asarray(rate)[: len(sorted_l)], allowed, side="right")
    return np.append(np.minimum(count, len(sorted_l) - np.arange(len(sorted_l))), 0)


def _traced(used: tuple[int, ...], reached: dict[tuple[int, ...], tuple[int, int]]) -> tuple[SortedRun, ...]:
    runs = []
    while any(used):
        last, kind = reached[used]
        used = (*used[:kind], used[kind] - 1, *used[kind + 1 :])
        first = reached[used][0]
        if last > first:
            runs.append(SortedRun(kind, first, last))
    return tuple(reversed(runs))


def _slowest(runs: tuple[SortedRun, ...], sorted_l: Floats, rates: Sequence[Floats]) -> float:
    return max(float(rates[run.kind][run.last - run.first - 1] * sorted_l[run.first]) for run in runs)
