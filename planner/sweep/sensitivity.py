"""Which input moves the decision, and the objective by how much."""

import math
from collections.abc import Sequence
from itertools import pairwise

from planner.sweep.axes import Axis, Point
from planner.sweep.breakeven import neighbours
from planner.sweep.decisions import Decider, Decision, Place
from planner.sweep.run import Swept

_DIGITS = 6  # of fitted figures


def sensitivity(swept: Swept) -> dict[str, object]:
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
    swept: Swept,
    axis: Axis,
    decided: Sequence[tuple[Place, Decision]],
    pairs: Sequence[tuple[Axis, Place, Decision, Place, Decision]],
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


def _slope(axis: Axis, low: Place, before: Decision, high: Place, after: Decision) -> float | None:
    x, y = float(low.value(axis.index).cell), float(high.value(axis.index).cell)
    a, b = before.objective, after.objective
    if a is None or b is None or min(x, y, a, b) <= 0 or x == y:
        return None
    return math.log(b / a) / math.log(y / x)


def _lines(swept: Swept, axis: Axis, decided: Sequence[tuple[Place, Decision]]) -> list[list[Decision]]:
    """Decisions along `axis`, all else equal, in the order of its values."""
    if swept.sweep.spec.mode != "grid" and len(swept.axes) > 1:
        return []
    lines: dict[object, list[tuple[Place, Decision]]] = {}
    for place, decision in decided:
        lines.setdefault(place.without(axis.index), []).append((place, decision))
    if axis.numeric:
        for line in lines.values():
            line.sort(key=lambda entry: float(entry[0].value(axis.index).cell))
    return [[decision for _, decision in line] for line in lines.values()]


def _spread(line: Sequence[Decision]) -> float | None:
    amounts = [decision.objective for decision in line if decision.objective is not None and decision.objective > 0]
    return max(amounts) / min(amounts) - 1 if len(amounts) > 1 else None


def _fitted(swept: Swept, decided: Sequence[tuple[Place, Decision]]) -> dict[int, float]:
    """Elasticities by least squares over all samples: ln(objective) = c + sum_k e_k ln(x_k)."""
    import numpy as np

    axes = [
        axis
        for axis in swept.axes
        if axis.numeric and not axis.choice and all(float(place.value(axis.index).cell) > 0 for place, _ in decided)
    ]
    rows = [(place, decision.objective) for place, decision in decided if decision.objective]
    if not axes or len(rows) <= len(axes) + 1:
        return {}
    inputs = np.array([[1.0, *(math.log(float(place.value(axis.index).cell)) for axis in axes)] for place, _ in rows])
    amounts = np.log(np.array([amount for _, amount in rows]))
    solution, _, rank, _ = np.linalg.lstsq(inputs, amounts, rcond=None)
    if rank <= len(axes):
        return {}
    return {axis.index: float(slope) for axis, slope in zip(axes, solution[1:], strict=True)}


def _against_base(swept: Swept) -> dict[str, object]:
    """The decision of the problem as it stands, by scenario, and the share of points that decide otherwise."""
    runner = swept.runner
    keys = runner.solve([Point(index, ()) for index in range(len(swept.scenarios))], "base problems")
    base = [runner.record(key).get("plan") for key in keys]
    judged = [
        record.get("plan") != base[point.scenario]
        for point, record in zip(swept.points, swept.records(), strict=True)
        if record["status"] in ("ok", "infeasible")
    ]
    return {
        "base": dict(zip(swept.scenarios, base, strict=True)),
        "differs_from_base": _rounded(_mean([float(other) for other in judged])),
    }


def _mean(amounts: Sequence[float]) -> float | None:
    return math.fsum(amounts) / len(amounts) if amounts else None


def _rounded(amount: float | None) -> float | None:
    return None if amount is None else float(f"{amount:.{_DIGITS}g}")
