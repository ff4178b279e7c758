"""Units of memory beside machines that need fewer the more of it there is: the least price of both, proven.

Sets        k in K tiers
Parameters  p_k >= 0 price of a unit, U_k most units
            g(n) price of the machines beside units n, infinite where none do;  f(u) <= g(n) for all n <= u: a floor
Variables   n_k in {0..U_k}
Minimise    sum_k p_k n_k + g(n)
Boxes of units [l, u] are split, the one of least bound p l + f(u) first, as of branch and bound over integers; its
corner l is a candidate. f falls as u grows, so that f(u) is known without a call between a floor above it and the price
of machines at units below it that are equal: g has few steps.
K tier.
"""

import heapq
import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from planner.errors import PlannerError
from planner.solvers.result import SolveResult, Status

Units = tuple[int, ...]
SOLVER = "branch and bound over boxes of units"
TOLERANCE = 1e-9  # relative, of prices that are equal


@dataclass(frozen=True, slots=True)
class MemoryProblem:
    """Prices and most units of each tier, and what machines cost beside them."""

    price_K: tuple[float, ...]
    most_K: Units
    value: Callable[[Units], float]
    floor: Callable[[Units], float]

    def __post_init__(self) -> None:
        if len(self.price_K) != len(self.most_K) or min(self.most_K, default=0) < 0:
            what = f"{len(self.price_K)} prices of {len(self.most_K)} tiers"
            raise PlannerError(what, where="tiers", hint="give each a price, and 0 units or more at the most")
        if not all(0.0 <= price < math.inf for price in self.price_K):
            raise PlannerError("a price of memory is below 0", where="tiers", hint="give prices of 0 or more")

    def memory(self, units: Units) -> float:
        """The price of units."""
        return sum(price * count for price, count in zip(self.price_K, units, strict=True))


@dataclass(slots=True)
class Machines:
    """Prices of machines that were asked for, and what they say of others; kept over several searches."""

    problem: MemoryProblem
    values: dict[Units, float] = field(default_factory=dict)
    floors: dict[Units, float] = field(default_factory=dict)

    def value(self, units: Units) -> float:
        """g(n), asked for once."""
        if units not in self.values:
            self.values[units] = self.problem.value(units)
        return self.values[units]

    def floor(self, units: Units) -> float:
        """f(u), asked for where no other price says it."""
        if units not in self.floors:
            low = max((known for above, known in self.floors.items() if _within(units, above)), default=-math.inf)
            high = min((known for below, known in self.values.items() if _within(below, units)), default=math.inf)
            told = low > -math.inf and (low == high or math.isclose(low, high, rel_tol=TOLERANCE))
            self.floors[units] = low if told else max(self.problem.floor(units), low)
        return self.floors[units]

    @property
    def asked(self) -> int:
        """How many prices were asked for or told."""
        return len(self.values) + len(self.floors)


def cheapest_memory(
    problem: MemoryProblem, machines: Machines | None = None, *, gap: float = 0.0, scale: float = 1.0
) -> SolveResult[Units]:
    """The units of least price with their machines, within `gap` of it; memory costs `scale` times its prices.

    Infeasible where machines do at no units.
    """
    started_s = time.perf_counter()
    known = machines or Machines(problem)
    none, number = (0,) * len(problem.most_K), itertools.count()
    best, least, pruned = None, math.inf, math.inf
    boxes: list[tuple[float, int, Units, Units]] = []

    def add(low: Units, high: Units) -> None:
        bound = scale * problem.memory(low) + known.floor(high)
        if bound < math.inf:
            heapq.heappush(boxes, (bound, next(number), low, high))

    add(none, problem.most_K)
    while boxes:
        bound, _, low, high = heapq.heappop(boxes)
        if bound >= least - max(gap, TOLERANCE) * abs(least):
            pruned = min(pruned, bound)
            break
        price = scale * problem.memory(low) + known.value(low)
        if price < least:
            best, least = low, price
        if low == high or math.isclose(bound, price, rel_tol=TOLERANCE):
            continue
        for child in _halves(problem, low, high):
            add(*child)
    spent_s = time.perf_counter() - started_s
    if best is None:
        return SolveResult(Status.INFEASIBLE, "finished", None, None, None, spent_s, SOLVER)
    bound = min(least, pruned)
    closed = least - bound <= TOLERANCE * abs(least)
    status = Status.OPTIMAL if closed else Status.FEASIBLE
    return SolveResult(status, "finished", best, least, least if closed else bound, spent_s, SOLVER)


def none_above(problem: MemoryProblem, machines: Machines, bought: Units) -> float | None:
    """The factor on all prices of memory from which on none is bought.

    None where machines alone do not do, or units without a price save something.
    max over n of (g(0) - g(n)) / (p n), by Dinkelbach's method (Management Science 13(7), 1967) from what is bought.
    """
    none = (0,) * len(problem.most_K)
    alone = machines.value(none)
    if alone == math.inf or problem.memory(bought) <= 0.0:
        return None
    factor, units = 1.0, bought
    while True:
        saved = (alone - machines.value(units)) / problem.memory(units)
        if saved <= factor * (1.0 + TOLERANCE):
            return max(factor, saved)
        factor = saved
        answer = cheapest_memory(problem, machines, scale=factor).solution
        if answer is None or answer == none:
            return factor
        if problem.memory(answer) <= 0.0:
            return None
        units = answer


def _within(low: Units, high: Units) -> bool:
    return all(a <= b for a, b in zip(low, high, strict=True))


def _halves(problem: MemoryProblem, low: Units, high: Units) -> tuple[tuple[Units, Units], tuple[Units, Units]]:
    """The box cut where it is widest by price; of free tiers by units."""
    widths = [
        ((price + 1e-12) * (b - a), k) for k, (price, a, b) in enumerate(zip(problem.price_K, low, high, strict=True))
    ]
    _, k = max(widths, key=lambda width: (width[0], -width[1]))
    middle = (low[k] + high[k]) // 2
    below, above = (*high[:k], middle, *high[k + 1 :]), (*low[:k], middle + 1, *low[k + 1 :])
    return (low, below), (above, high)
