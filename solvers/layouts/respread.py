"""Makespan rescheduling with a price for every move, and robust makespan: layouts that change little or hedge.

Weights are their means plus independent noise and common factors; a bin's time is then the mean of its load plus `z`
standard deviations. With neither, the time is the plain one. Shape suffixes: E item, R bin, P slot, F factor.
"""

import time
from dataclasses import dataclass

import numpy as np

from planner.arrays import Bools, Floats, Ints
from planner.errors import PlannerError
from planner.solvers.layouts.spread import (
    Spread,
    SpreadProblem,
    construct,
    equal_shares,
    require_layout,
    result_of,
    solve_spread,
    time_bound,
)
from planner.solvers.result import SolveResult

STEPS = 600
SOLVER = "priced local search"


@dataclass(frozen=True, slots=True, eq=False)
class Uncertainty:
    """How weights may differ from their means; `factor_FE` holds each common factor's one standard deviation."""

    variance_E: Floats
    factor_FE: Floats
    z: float = 1.0


def certain(num_items: int) -> Uncertainty:
    """No uncertainty at all."""
    return Uncertainty(np.zeros(num_items), np.zeros((0, num_items)), 0.0)


def holds(problem: SpreadProblem, item_P: Ints) -> Bools:
    """[E, R] whether a bin holds an item."""
    placed_ER = np.zeros((len(problem.weight_E), len(problem.slots_R)), np.bool_)
    placed_ER[item_P, problem.bin_P] = True
    return placed_ER


def num_moves(problem: SpreadProblem, resident_P: Ints, item_P: Ints) -> int:
    """Copies that must be sent to a bin which does not hold the item."""
    return int((holds(problem, item_P) & ~holds(problem, resident_P)).sum())


def hedged_time(problem: SpreadProblem, item_P: Ints, uncertainty: Uncertainty) -> float:
    """Mean plus z standard deviations of the slowest bin, equal shares."""
    share_P = equal_shares(item_P, len(problem.weight_E))
    bins = len(problem.slots_R)
    mean_R = np.bincount(problem.bin_P, weights=problem.weight_E[item_P] * share_P, minlength=bins)
    variance_R = np.bincount(problem.bin_P, weights=uncertainty.variance_E[item_P] * share_P**2, minlength=bins)
    for factor_E in uncertainty.factor_FE:
        variance_R += np.bincount(problem.bin_P, weights=factor_E[item_P] * share_P, minlength=bins) ** 2
    return float(((mean_R + uncertainty.z * np.sqrt(variance_R)) / problem.speed_R).max())


def respread(
    problem: SpreadProblem,
    resident_P: Ints,
    goal: float,
    *,
    uncertainty: Uncertainty | None = None,
    steps: int = STEPS,
    seed: int = 0,
) -> SolveResult[Spread]:
    """A layout no slower than `goal`, from the resident one with few moves; FEASIBLE also where `goal` is missed.

    Each step takes the swap or the change of copies that lowers the time above `goal` most for each move it costs.
    Without uncertainty, a search that stays above `goal` goes on as `solve_spread` from where it stands.
    """
    from planner.solvers.compiled.hedged import rebalance

    started = time.perf_counter()
    require_layout(problem, resident_P, where="resident layout")
    assumed = certain(len(problem.weight_E)) if uncertainty is None else uncertainty
    _require_uncertainty(problem, assumed)
    item_P = resident_P.astype(np.int64, copy=True)
    reached = rebalance(
        item_P, problem.bin_P, problem.first_R, problem.weight_E, assumed.variance_E, assumed.factor_FE, assumed.z,
        problem.speed_R, problem.allowed, holds(problem, resident_P), goal, steps, True,
    )  # fmt: skip
    bound = time_bound(problem)
    if uncertainty is None and reached > goal:
        tolerance = max(goal / bound - 1.0, 0.0)
        further = solve_spread(problem, start_P=item_P, tolerance=tolerance, seed=seed).solution
        assert further is not None
        item_P = further.item_P
    return result_of(problem, Spread(item_P, equal_shares(item_P, len(problem.weight_E))), bound, started, SOLVER)


def hedge(problem: SpreadProblem, uncertainty: Uncertainty, *, steps: int = STEPS) -> Ints | None:
    """A layout made from nothing whose slowest bin has least mean plus z standard deviations; None where it sticks."""
    from planner.solvers.compiled.hedged import rebalance

    _require_uncertainty(problem, uncertainty)
    item_P = construct(problem)
    if item_P is None:
        return None
    free_ER = np.ones((len(problem.weight_E), len(problem.slots_R)), np.bool_)
    rebalance(
        item_P, problem.bin_P, problem.first_R, problem.weight_E, uncertainty.variance_E, uncertainty.factor_FE,
        uncertainty.z, problem.speed_R, problem.allowed, free_ER, 0.0, steps, False,
    )  # fmt: skip
    return item_P


def _require_uncertainty(problem: SpreadProblem, uncertainty: Uncertainty) -> None:
    items = len(problem.weight_E)
    if uncertainty.variance_E.shape != (items,) or uncertainty.factor_FE.shape[1:] != (items,):
        raise PlannerError(
            f"variances {uncertainty.variance_E.shape} and factors {uncertainty.factor_FE.shape} for {items} items",
            where="uncertainty",
            hint="give one of each for every item",
        )
    if (uncertainty.variance_E < 0).any() or not np.isfinite(uncertainty.factor_FE).all():
        raise PlannerError("variances must be at least 0 and factors finite", where="uncertainty")
