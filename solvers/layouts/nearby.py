"""Generalised assignment by local search: copies placed so that most weight is carried in the group it comes from.

Sets        e in E items, g in G groups of bins
Parameters  w_e weight, s_g the share of every item's weight that comes from g
Variables   a layout with n_e copies of each item, n_eg of them in g
Maximise    sum_eg w_e min(s_g, n_eg / n_e), what copies of a group carry of what comes from it
(C1) no bin is slower than the goal
Weight comes from all bins alike, and a copy first serves its own group. Shape suffixes: E item, G group, R bin, P slot.
"""

import time

import numpy as np

from planner.arrays import Floats, Ints
from planner.errors import PlannerError
from planner.solvers.layouts.spread import Spread, SpreadProblem, bin_times, equal_shares, require_layout
from planner.solvers.result import SolveResult, Status

SWEEPS = 20
SOLVER = "descent towards sources"


def far_share(weight_E: Floats, group_P: Ints, item_P: Ints, share_P: Floats, source_GE: Floats) -> float:
    """Share of all weight that must leave its group: the least that the layout's shares allow.

    Of an item, a group keeps what comes from it or what its copies carry, whichever is less. `group_P` is the group of
    every slot, `source_GE` the weight of each item that comes from each group; empty slots are -1.
    """
    groups, items = source_GE.shape
    filled = item_P >= 0
    cell, carried = group_P[filled] * items + item_P[filled], share_P[filled] * weight_E[item_P[filled]]
    carried_GE = np.bincount(cell, weights=carried, minlength=groups * items).reshape(groups, items)
    return max(0.0, 1.0 - float(np.minimum(carried_GE, source_GE).sum()) / float(weight_E.sum()))


def even_sources(weight_E: Floats, group_R: Ints) -> Floats:
    """[G, E] weight that comes from each group when every bin sends as much."""
    return np.outer(np.bincount(group_R) / len(group_R), weight_E)


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
    source_GE = even_sources(problem.weight_E, group_R)
    far = far_share(problem.weight_E, group_R[problem.bin_P], item_P, spread.share_P, source_GE)
    bound = min(far_bound(problem, group_R), far)
    status = Status.OPTIMAL if far <= bound + 1e-9 else Status.FEASIBLE
    return SolveResult(status, "finished", spread, far, bound, time.perf_counter() - started, SOLVER)
