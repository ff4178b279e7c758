"""Divisible loads on given places (fractional assignment): what part of its item's weight each copy carries.

Sets        p in P slots with item e(p) on bin r(p)
Parameters  w_e weight, v_r speed
Variables   x_p >= 0 weight carried by slot p;  T the slowest bin
Minimise    T
(C1) sum_{p: e(p) = e} x_p = w_e      for e   all weight is carried
(C2) sum_{p: r(p) = r} x_p <= v_r T   for r   T bounds every bin
`solve_free` chooses the places too.
"""

import time
from collections.abc import Iterator

import numpy as np

from planner.arrays import Floats, Ints
from planner.solvers.layouts.exports import ExportProblem, solve_export
from planner.solvers.layouts.spread import (
    STEPS,
    TOLERANCE,
    Spread,
    SpreadProblem,
    bin_times,
    equal_shares,
    result_of,
    solve_spread,
    time_bound,
)
from planner.solvers.result import SolveResult

SWEEPS = 300
ATTEMPTS = 4
SOLVER = "spread with free shares"


def pour(problem: SpreadProblem, item_P: Ints, *, share_P: Floats | None = None, goal: float = 0.0) -> Floats:
    """The shares that make the slowest bin of a given layout fastest, to about 1e-6; equal ones are the start.

    Coordinate descent, see `compiled.shares`. `goal` is a time at which it may stop.
    """
    from planner.solvers.compiled.shares import pour_shares

    shares = equal_shares(item_P, len(problem.weight_E)) if share_P is None else share_P.copy()
    pour_shares(item_P, problem.bin_P, problem.weight_E, problem.speed_R, shares, goal, SWEEPS)
    return shares


def solve_free(
    problem: SpreadProblem, *, tolerance: float = TOLERANCE, steps: int = STEPS, seed: int = 0
) -> SolveResult[Spread]:
    """A layout with free shares: the better of equal shares poured anew, and single homes with exports.

    The second needs one slot a bin beyond the homes, and then leaves hardly any gap, however few slots a bin has.
    """
    started = time.perf_counter()
    bound = time_bound(problem)
    goal = bound * (1.0 + tolerance)
    best: Spread | None = None
    reached = np.inf
    for attempt in range(ATTEMPTS):
        for spread in _candidates(problem, goal, tolerance, steps, seed + attempt):
            slowest = float(bin_times(problem, spread.item_P, spread.share_P).max())
            if slowest < reached:
                best, reached = spread, slowest
        if reached <= goal:
            break
    if best is None:
        return solve_spread(problem, tolerance=tolerance, steps=steps, seed=seed)
    return result_of(problem, best, bound, started, SOLVER)


def _candidates(problem: SpreadProblem, goal: float, tolerance: float, steps: int, seed: int) -> Iterator[Spread]:
    """Equal shares poured anew; and, unless that meets the goal, single homes with exports."""
    equal = solve_spread(problem, tolerance=tolerance, steps=steps, seed=seed).solution
    if equal is None:
        return
    poured = Spread(equal.item_P, pour(problem, equal.item_P))
    yield poured
    if problem.allowed_ER is None and float(bin_times(problem, poured.item_P, poured.share_P).max()) > goal:
        other = _homes_and_exports(problem, tolerance, steps, seed)
        if other is not None:
            yield other


def _free_slots(problem: SpreadProblem) -> Ints:
    """Slots of each bin kept free of homes: evenly, the widest bins first."""
    left = int(problem.first_R[-1]) - len(problem.weight_E)
    free_R = np.zeros(len(problem.slots_R), np.int64)
    while left > 0:
        room = problem.slots_R - free_R - 1
        order = np.argsort(-(room - 1e-3 * np.arange(len(room))), kind="stable")
        chosen = [r for r in order if room[r] > 0 and free_R[r] == free_R[room > 0].min()][:left]
        free_R[chosen] += 1
        left -= len(chosen)
    return free_R


def _homes_and_exports(problem: SpreadProblem, tolerance: float, steps: int, seed: int) -> Spread | None:
    if len(problem.weight_E) < len(problem.slots_R):
        return None  # a bin would be left without a home
    free_R = _free_slots(problem)
    home_R = problem.slots_R - free_R
    homes = solve_spread(
        SpreadProblem(problem.weight_E, home_R, problem.speed_R), tolerance=tolerance, steps=steps // 4, seed=seed
    )
    if homes.solution is None:
        return None
    item_H = homes.solution.item_P
    exported = solve_export(
        ExportProblem(problem.weight_E[item_H], home_R, free_R, problem.speed_R), tolerance=tolerance
    )
    assert exported.solution is not None
    item_P, share_P = np.empty(int(problem.first_R[-1]), np.int64), np.zeros(int(problem.first_R[-1]))
    left_E = problem.weight_E.copy()
    home_at = np.concatenate([problem.first_R[r] + np.arange(home_R[r]) for r in range(len(home_R))])
    item_P[home_at] = item_H
    for r in range(len(home_R)):
        _fill_free(problem, r, int(home_R[r]), item_H, exported.solution.item_RJ[r], item_P)
        for j, source in enumerate(exported.solution.item_RJ[r]):
            if source >= 0:
                amount = float(exported.solution.amount_RJ[r, j])
                item = int(item_H[source])
                slot = _slot_of(problem, item_P, r, item)
                share_P[slot] += amount / max(problem.weight_E[item], 1e-300)
                left_E[item] -= amount
    share_P[home_at] += left_E[item_H] / np.maximum(problem.weight_E[item_H], 1e-300)
    idle = problem.weight_E[item_P] <= 0.0
    share_P[idle] = equal_shares(item_P, len(problem.weight_E))[idle]
    return Spread(item_P, pour(problem, item_P, share_P=share_P))


def _slot_of(problem: SpreadProblem, item_P: Ints, bin_: int, item: int) -> int:
    first, last = int(problem.first_R[bin_]), int(problem.first_R[bin_ + 1])
    return first + int(np.argmax(item_P[first:last] == item))


def _fill_free(problem: SpreadProblem, bin_: int, homes: int, item_H: Ints, piece_J: Ints, item_P: Ints) -> None:
    """Free slots of a bin take the items handed to it, then the heaviest items it does not hold, with no share."""
    first, last = int(problem.first_R[bin_]), int(problem.first_R[bin_ + 1])
    resident = list(item_P[first : first + homes])
    for piece in piece_J:
        if piece >= 0 and int(item_H[piece]) not in resident:
            resident.append(int(item_H[piece]))
    for item in np.argsort(-problem.weight_E, kind="stable"):
        if len(resident) >= last - first:
            break
        if int(item) not in resident:
            resident.append(int(item))
    item_P[first:last] = resident
