"""Copies placed so that as much weight as can be is carried in the group of bins that it comes from.

Weight comes from all bins alike, and a copy first serves its own group. Shape suffixes: E item, G group, R bin, P slot.
"""

import time

import numpy as np

from planner.errors import PlannerError
from planner.solvers.result import SolveResult, Status
from planner.solvers.spread import (
    Floats,
    Ints,
    Spread,
    SpreadProblem,
    bin_times,
    equal_shares,
    require_layout,
)

SWEEPS = 20
SOLVER = "descent towards sources"


def far_share(
    problem: SpreadProblem, group_R: Ints, spread: Spread, source_RE: Floats | None = None
) -> tuple[float, float]:
    """(share of all weight that must leave its group, and its bin), the least that the layout's shares allow.

    Of an item, a group keeps what comes from it or what its copies carry, whichever is less. `source_RE` is the weight
    of each item that comes from each bin; the same from all unless given.
    """
    bins, items = len(problem.slots_R), len(problem.weight_E)
    if source_RE is None:
        source_RE = np.tile(problem.weight_E / bins, (bins, 1))
    carried_RE = np.zeros((bins, items))
    filled = spread.item_P >= 0
    at = (problem.bin_P[filled], spread.item_P[filled])
    np.add.at(carried_RE, at, (spread.share_P[filled] * problem.weight_E[spread.item_P[filled]]))
    groups = int(group_R.max()) + 1
    carried_GE, source_GE = np.zeros((groups, items)), np.zeros((groups, items))
    np.add.at(carried_GE, group_R, carried_RE)
    np.add.at(source_GE, group_R, source_RE)
    total = float(problem.weight_E.sum())
    near, own = np.minimum(carried_GE, source_GE).sum(), np.minimum(carried_RE, source_RE).sum()
    return max(0.0, 1.0 - float(near) / total), max(0.0, 1.0 - float(own) / total)


def far_bound(problem: SpreadProblem, group_R: Ints) -> float:
    """A share that no layout of equal shares is below: each copy keeps at most the widest group's part of its item, the
    slots beyond one an item go to the heaviest, and no item has use for more copies than keep all of it."""
    widest = float(np.bincount(group_R).max() / len(group_R))
    groups = int(group_R.max()) + 1
    heaviest = np.sort(problem.weight_E)[::-1]
    spare = int(problem.first_R[-1]) - len(heaviest)
    gains = np.repeat(heaviest, groups - 1)[: max(spare, 0)]
    near = widest * float(heaviest.sum() + gains.sum()) / float(heaviest.sum())
    return max(0.0, 1.0 - near)


def solve_nearby(problem: SpreadProblem, group_R: Ints, start_P: Ints, goal: float) -> SolveResult[Spread]:
    """From a layout, swaps and changes of copy counts that keep more weight in its group, every bin within `goal`.

    `goal` is a time no less than that of the start's slowest bin. O(sweeps x slots^2 x groups). The objective is the
    share of weight that leaves its group.
    """
    from planner.solvers.compiled.nearby import draw_near

    started = time.perf_counter()
    require_layout(problem, start_P, where="start")
    if group_R.shape != problem.slots_R.shape or problem.allowed_ER is not None:
        raise PlannerError(f"{group_R.shape} groups for {problem.slots_R.shape} bins", where="groups")
    slowest = float(bin_times(problem, start_P).max())
    item_P = start_P.astype(np.int64, copy=True)
    source_G = np.bincount(group_R) / len(group_R)
    draw_near(item_P, problem.bin_P, group_R, problem.weight_E, problem.speed_R, source_G, max(goal, slowest), SWEEPS)
    spread = Spread(item_P, equal_shares(item_P, len(problem.weight_E)))
    far = far_share(problem, group_R, spread)[0]
    bound = min(far_bound(problem, group_R), far)
    status = Status.OPTIMAL if far <= bound + 1e-9 else Status.FEASIBLE
    return SolveResult(status, "finished", spread, far, bound, time.perf_counter() - started, SOLVER)
