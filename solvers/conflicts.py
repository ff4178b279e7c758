"""Irreducible infeasible subsets: limits that cannot hold together, and how far one of them must move.

The solvers compute no infeasible subsystems (OR-Tools 9.15 refuses it for HiGHS, GSCIP, GLOP and CP-SAT), so all here
asks a yes-or-no oracle. Feasibility must be monotone: dropping a limit never makes a feasible set infeasible.
"""

import bisect
import itertools
from collections.abc import Callable, Sequence
from typing import TypeVar

from planner.errors import PlannerError

T = TypeVar("T")
Oracle = Callable[[frozenset[int]], bool]
DELETION_MAX = 6  # up to here one call a limit costs no more than dividing


def minimal_conflict(limits: Sequence[T], feasible: Callable[[frozenset[T]], bool]) -> tuple[T, ...]:
    """An irreducible infeasible subset, in the order given: without any one of its members the rest can hold.

    Deletion filter (Chinneck, "Feasibility and Infeasibility in Optimization", 2008) for few limits, QuickXplain
    (Junker, AAAI 2004) for many: O(k log(n/k)) calls for a conflict of k. Earlier limits are dropped last.
    Empty when nothing is feasible even without limits; raises PlannerError when all limits hold together.
    """
    oracle = _by_index(limits, feasible)
    return tuple(limits[i] for i in sorted(_irreducible(len(limits), oracle)))


def smallest_conflict(limits: Sequence[T], feasible: Callable[[frozenset[T]], bool]) -> tuple[T, ...]:
    """An infeasible subset with the fewest members (the first in order among those), for up to some 15 limits.

    Every infeasible set meets the complement of every feasible one; the smallest set that meets all complements seen
    so far is the answer once it is infeasible, and else yields one more (Ignatiev et al., CP 2015).
    """
    oracle = _by_index(limits, feasible)
    everything = range(len(limits))
    most = len(_irreducible(len(limits), oracle))
    corrections: list[frozenset[int]] = []
    for size in range(most + 1):
        for chosen in itertools.combinations(everything, size):
            if any(correction.isdisjoint(chosen) for correction in corrections):
                continue
            if not oracle(frozenset(chosen)):
                return tuple(limits[i] for i in chosen)
            corrections.append(frozenset(everything) - _grown(frozenset(chosen), len(limits), oracle))
    raise PlannerError("feasibility is not monotone in the limits", where="conflicts")


def nearest_value(
    feasible_at: Callable[[float], bool],
    current: float,
    direction: int,
    *,
    furthest: float,
    tolerance: float = 1e-3,
) -> float | None:
    """The feasible value nearest to `current` in `direction` (+1, -1), within `tolerance` relative to the move.

    None when not even `furthest` is feasible. Steps double from `tolerance` x |current| until one is feasible, then
    bisection; feasibility must not be lost again further out. The value returned was itself tested.
    """
    if feasible_at(current):
        return current
    span = abs(furthest - current)
    reach = min(span, abs(current) * tolerance or span * tolerance)
    failed = 0.0
    while not feasible_at(current + direction * reach):
        if reach >= span:
            return None
        failed, reach = reach, min(span, 2.0 * reach)
    while reach - failed > tolerance * reach:
        middle = 0.5 * (failed + reach)
        if feasible_at(current + direction * middle):
            reach = middle
        else:
            failed = middle
    return current + direction * reach


def nearest_candidate(feasible_at: Callable[[T], bool], candidates: Sequence[T]) -> T | None:
    """The first feasible of `candidates`, which are ordered by distance and monotone, in O(log n) calls; else None."""
    first = bisect.bisect_left(candidates, True, key=feasible_at)
    return candidates[first] if first < len(candidates) else None


def _by_index(limits: Sequence[T], feasible: Callable[[frozenset[T]], bool]) -> Oracle:
    """The oracle on positions, each set asked once; raises PlannerError when all limits hold together."""
    answers: dict[frozenset[int], bool] = {}

    def ask(chosen: frozenset[int]) -> bool:
        if chosen not in answers:
            answers[chosen] = feasible(frozenset(limits[i] for i in chosen))
        return answers[chosen]

    if ask(frozenset(range(len(limits)))):
        raise PlannerError("all limits hold together: there is no conflict", where="conflicts")
    return ask


def _irreducible(count: int, oracle: Oracle) -> frozenset[int]:
    if not oracle(frozenset()):
        return frozenset()
    if count > DELETION_MAX:
        return _quick_explain(frozenset(), frozenset(), tuple(range(count)), oracle)
    kept = frozenset(range(count))
    for i in reversed(range(count)):
        if not oracle(kept - {i}):
            kept -= {i}
    return kept


def _quick_explain(
    background: frozenset[int], added: frozenset[int], limits: tuple[int, ...], oracle: Oracle
) -> frozenset[int]:
    """The members of `limits` that make `background` infeasible, irreducibly; `added` are the newest of it."""
    if added and not oracle(background):
        return frozenset()
    if len(limits) == 1:
        return frozenset(limits)
    half = len(limits) // 2
    first, second = frozenset(limits[:half]), limits[half:]
    from_second = _quick_explain(background | first, first, second, oracle)
    from_first = _quick_explain(background | from_second, from_second, limits[:half], oracle)
    return from_first | from_second


def _grown(chosen: frozenset[int], count: int, oracle: Oracle) -> frozenset[int]:
    """A maximal feasible set that contains the feasible set `chosen`."""
    for i in range(count):
        if i not in chosen and oracle(chosen | {i}):
            chosen |= {i}
    return chosen
