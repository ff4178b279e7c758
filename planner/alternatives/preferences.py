"""Preferences between plans that are nearly as good: the fewest distinct instance types within a stated loss."""

from dataclasses import replace

from planner.alternatives.axes import unfixed
from planner.api import solve
from planner.errors import Infeasible, PlannerError
from planner.problem.resolve import Resolved
from planner.progress import Limits


def with_fewest_shapes(resolved: Resolved, loss: float, limits: Limits) -> Resolved:
    """The problem held to the fewest instance types with which its objective, by formulas, loses at most `loss`.

    Raises PlannerError for a kind whose plans have no instance types to count.
    """
    if resolved.problem.kind != "serve":
        raise PlannerError(
            f"plans of kind `{resolved.problem.kind}` have no instance types to count",
            where="--fewest-shapes",
            hint="leave it out: it is for serving",
        )
    best = solve(resolved, limits, level="static").certificate.objective
    used = resolved.problem.options.get("max_shapes")
    quiet = replace(limits, tell=lambda message: None)
    for shapes in range(1, int(used) if isinstance(used, int) else 9):
        held = unfixed(resolved, {**resolved.problem.options, "max_shapes": shapes})
        try:
            value = solve(held, quiet, level="static").certificate.objective.value
        except Infeasible:
            continue
        if best.value is None or value is None:
            break
        worse = best.value - value if best.sense == "maximize" else value - best.value
        if worse <= loss * abs(best.value) + best_tolerance(best.value):
            return held
    return resolved


def best_tolerance(value: float) -> float:
    """What two objectives may differ by and count as equal."""
    return 1e-6 * abs(value)
