"""Transportation with relays: parts of items handed from their home bins to free slots of others, at every step.

Sets        e in E items with home h(e), r in R bins
Parameters  w_e weight, v_r speed, k_r free slots
Variables   y_er in {0, 1} a free slot of r takes e;  x_er >= 0 the weight of e carried there;  T the slowest bin
Minimise    T
(C1) x_er <= w_e y_er                                       for e, r != h(e)   only where a slot is taken
(C2) sum_e y_er <= k_r                                      for r              free slots
(C3) sum_r x_er <= w_e                                      for e              no more than there is
(C4) sum_{h(e)=r} (w_e - sum_q x_eq) + sum_e x_er <= v_r T  for r              T bounds every bin
A bin that hands over may take in weight of others before: a relay. Shape suffixes: E item (bin-major), R bin, J free
slot of a bin.
"""

import time
from dataclasses import dataclass

import numpy as np

from planner.arrays import Bools, Floats, Ints
from planner.errors import PlannerError
from planner.solvers.layouts.spread import require_weights
from planner.solvers.result import SolveResult, Status

TOLERANCE = 5e-4
"""Of the time over its bound that ends the search; less costs more pieces handed over than it gains."""
ROUNDS = 14
SOLVER = "greedy export with relays"


@dataclass(frozen=True, slots=True, eq=False)
class ExportProblem:
    """Weights of items in order of their homes, how many are at home on each bin, its free slots and its speed."""

    weight_E: Floats
    home_R: Ints
    free_R: Ints
    speed_R: Floats

    def __post_init__(self) -> None:
        require_weights(self.weight_E)
        shapes = {self.home_R.shape, self.free_R.shape, self.speed_R.shape}
        if len(shapes) != 1 or int(self.home_R.sum()) != len(self.weight_E):
            raise PlannerError(
                f"{int(self.home_R.sum())} items at home for {len(self.weight_E)} weights",
                where="homes",
                hint="give every item one home",
            )
        if (self.home_R < 0).any() or (self.free_R < 0).any() or not (self.speed_R > 0).all():
            raise PlannerError("slots must be at least 0 and speeds positive", where="homes")


@dataclass(frozen=True, slots=True, eq=False)
class Exports:
    """The item in each free slot (-1: empty) and the weight it carries there; the rest stays at home."""

    item_RJ: Ints
    amount_RJ: Floats


def export_times(problem: ExportProblem, exports: Exports) -> Floats:
    """Time of every bin."""
    home_E = np.repeat(np.arange(len(problem.home_R)), problem.home_R)
    load_R = np.bincount(home_E, weights=problem.weight_E, minlength=len(problem.home_R))
    taken: Bools = exports.item_RJ >= 0
    np.subtract.at(load_R, home_E[exports.item_RJ[taken]], exports.amount_RJ[taken])
    load_R += np.where(taken, exports.amount_RJ, 0.0).sum(axis=1)
    return np.asarray(load_R / problem.speed_R)


def solve_export(problem: ExportProblem, *, tolerance: float = TOLERANCE, rounds: int = ROUNDS) -> SolveResult[Exports]:
    """What to hand over so that the slowest bin is fast: greedy transport under bisection; see `compiled.exports`.

    The bound is that of all bins busy to the end, which free slots and item sizes may forbid.
    """
    from planner.solvers.compiled.exports import export

    started = time.perf_counter()
    bins, width = len(problem.home_R), int(problem.free_R.max(initial=0))
    item_RJ, amount_RJ = np.full((bins, width), -1, np.int64), np.zeros((bins, width))
    first_R = np.concatenate([np.zeros(1, np.int64), np.cumsum(problem.home_R)]).astype(np.int64)
    bound = float(problem.weight_E.sum() / problem.speed_R.sum())
    goal = bound * (1.0 + tolerance)
    export(problem.weight_E, first_R, problem.speed_R, problem.free_R, goal, rounds, item_RJ, amount_RJ)
    exports = Exports(item_RJ, amount_RJ)
    slowest = float(export_times(problem, exports).max())
    bound = min(bound, slowest)
    status = Status.OPTIMAL if slowest <= bound * (1.0 + 1e-9) else Status.FEASIBLE
    return SolveResult(status, "finished", exports, slowest, bound, time.perf_counter() - started, SOLVER)
