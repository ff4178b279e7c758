"""Sensitivity: which inputs change the decision, and the objective by how much."""

import math
from collections.abc import Sequence
from itertools import pairwise

from planner.sweep.axes import SweepAxis, SweepPoint
from planner.sweep.breakeven import neighbours
from planner.sweep.decisions import BestOption, Condition, Decided, Decider, lines_along
from planner.sweep.journal import WITHOUT_PLAN
from planner.sweep.runner import FinishedSweep

_DIGITS = 6  # of fitted figures


def sensitivity(swept: FinishedSweep) -> dict[str, object]:
    """By axis: relative change of the objective per relative change of the input, and how often the decision changes.

    `elasticity` is d ln(objective) / d ln(input), averaged over neighbours of a grid, fitted by least squares over
    samples. `decision_changes` is the share of neighbouring points, all else equal, with different decisions;
    `objective_spread` how far the objective moves along the axis, (largest - smallest) / smallest, averaged.
    """
    decided = Decider(swept).all()
    fitted = _fitted(swept, decided) if swept.sweep.spec.mode != "grid" and len(swept.axes) > 1 else None
    pairs = neighbours(swept, decided)
    axes = [_of_axis(swept, axis, decided, pairs, fitted) for axis in swept.axes if not axis.choice]
    return {"axes": axes, **_against_base(swept)}


def _of_axis(
    swept: FinishedSweep,
    axis: SweepAxis,
    decided: Sequence[Decided],
    pairs: Sequence[tuple[SweepAxis, Condition, BestOption, Condition, BestOption]],
    fitted: dict[int, float] | None,
) -> dict[str, object]:
    slopes = [
        slope
        for along, low, before, high, after in pairs
        if along is axis and (slope := _slope(axis, low, before, high, after)) is not None
    ]
    elasticity = fitted.get(axis.index) if fitted is not None else _mean(slopes)
    lines = _lines(swept, axis, decided)
    changes = [
        a.label != b.label for line in lines for a, b in pairwise(line) if a.label is not None and b.label is not None
    ]
    return {
        "axis": axis.column,
        "elasticity": _rounded(elasticity),
        "decision_changes": _rounded(_mean([float(change) for change in changes])),
        "objective_spread": _rounded(_mean([spread for line in lines if (spread := _spread(line)) is not None])),
    }


def _slope(axis: SweepAxis, low: Condition, before: BestOption, high: Condition, after: BestOption) -> float | None:
    x, y = low.amount(axis.index), high.amount(axis.index)
    a, b = before.objective, after.objective
    if a is None or b is None or min(x, y, a, b) <= 0 or x == y:
        return None
    return math.log(b / a) / math.log(y / x)


def _lines(swept: FinishedSweep, axis: SweepAxis, decided: Sequence[Decided]) -> list[list[BestOption]]:
    """Decisions along `axis`, all else equal, in the order of its values."""
    if swept.sweep.spec.mode != "grid" and len(swept.axes) > 1:
        return []
    return [[decision for _, decision in line] for line in lines_along(axis, decided)]


def _spread(line: Sequence[BestOption]) -> float | None:
    amounts = [decision.objective for decision in line if decision.objective is not None and decision.objective > 0]
    return max(amounts) / min(amounts) - 1 if len(amounts) > 1 else None


def _fitted(swept: FinishedSweep, decided: Sequence[Decided]) -> dict[int, float]:
    """Elasticities by least squares over all samples: ln(objective) = c + sum_k e_k ln(x_k)."""
    import numpy as np

    axes = [
        axis
        for axis in swept.axes
        if axis.numeric and not axis.choice and all(condition.amount(axis.index) > 0 for condition, _ in decided)
    ]
    rows = [(condition, decision.objective) for condition, decision in decided if decision.objective]
    if not axes or len(rows) <= len(axes) + 1:
        return {}
    inputs = np.array([[1.0, *(math.log(condition.amount(axis.index)) for axis in axes)] for condition, _ in rows])
    amounts = np.log(np.array([amount for _, amount in rows]))
    solution, _, rank, _ = np.linalg.lstsq(inputs, amounts, rcond=None)
    if rank <= len(axes):
        return {}
    return {axis.index: float(slope) for axis, slope in zip(axes, solution[1:], strict=True)}


def _against_base(swept: FinishedSweep) -> dict[str, object]:
    """The decision of the problem as it stands, by scenario, and the share of points that decide otherwise."""
    runner = swept.runner
    keys = runner.solve([SweepPoint(index, ()) for index in range(len(swept.scenarios))], "base problems")
    base = [runner.record(key).get("plan") for key in keys]
    judged = [
        record.get("plan") != base[point.scenario]
        for point, record in zip(swept.points, swept.records(), strict=True)
        if record["status"] in ("ok", *WITHOUT_PLAN)
    ]
    return {
        "base": dict(zip(swept.scenarios, base, strict=True)),
        "differs_from_base": _rounded(_mean([float(other) for other in judged])),
    }


def _mean(amounts: Sequence[float]) -> float | None:
    return math.fsum(amounts) / len(amounts) if amounts else None


def _rounded(amount: float | None) -> float | None:
    return None if amount is None else float(f"{amount:.{_DIGITS}g}")
