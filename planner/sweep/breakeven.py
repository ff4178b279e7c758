"""Break-even points: where along a numeric axis, all else equal, the decision changes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from planner.sweep.axes import SweepAxis
from planner.sweep.decisions import BestOption, Condition, Decided, Decider, lines_along
from planner.sweep.runner import FinishedSweep

_MAX_ROUNDS = 60  # bisections of one interval; a double has no more


@dataclass(frozen=True, slots=True)
class BreakEven:
    """The decision is `before` at `low` and `after` at `high`; it changes between the two, cells of the axis."""

    axis: SweepAxis
    condition: Condition  # at `low`
    low: float
    high: float
    before: str
    after: str

    def relative_width(self) -> float:
        """The width of the interval over its larger end."""
        return (self.high - self.low) / max(abs(self.low), abs(self.high), 1e-300)


def break_evens(swept: FinishedSweep, *, narrow: bool, tolerance: float) -> list[BreakEven]:
    """Every change of the decision between neighbours along each numeric axis, narrowed to `tolerance` if asked.

    Neighbours with all else equal are known in grids, and on a sweep of one axis.
    """
    decider = Decider(swept)
    changes = [
        BreakEven(axis, low, low.amount(axis.index), high.amount(axis.index), before.label, after.label)
        for axis, low, before, high, after in neighbours(swept, decider.all())
        if before.label is not None and after.label is not None and before.label != after.label
    ]
    return _narrowed(changes, decider, tolerance) if narrow else changes


def neighbours(
    swept: FinishedSweep, decided: Sequence[Decided]
) -> list[tuple[SweepAxis, Condition, BestOption, Condition, BestOption]]:
    """Pairs of conditions that differ by one step along one numeric axis, in order of the axes and conditions."""
    varied = [axis for axis in swept.axes if not axis.choice]
    if swept.sweep.spec.mode != "grid" and len(varied) > 1:
        return []
    return [
        (axis, *low, *high)
        for axis in varied
        if axis.numeric
        for line in lines_along(axis, decided)
        for low, high in pairwise(line)
    ]


def _narrowed(changes: list[BreakEven], decider: Decider, tolerance: float) -> list[BreakEven]:
    """Bisection of all intervals at once, a round of solves at a time; each keeps its first decision at its low end."""
    for _ in range(_MAX_ROUNDS):
        middles = {
            index: middle for index, change in enumerate(changes) if (middle := _middle(change, tolerance)) is not None
        }
        if not middles:
            break
        wide = [(changes[index], middle) for index, middle in middles.items()]
        conditions = [change.condition.moved(change.axis.index, change.axis.at(middle)) for change, middle in wide]
        for index, condition, decision in zip(middles, conditions, decider.decide(conditions), strict=True):
            change, middle = changes[index], condition.amount(changes[index].axis.index)
            if decision.label == change.before:
                changes[index] = replace(change, low=middle, condition=condition)
            else:
                changes[index] = replace(change, high=middle, after=decision.label or change.after)
    return changes


def _middle(change: BreakEven, tolerance: float) -> float | None:
    """Where to look next; None when the interval is narrow enough."""
    low, high = change.low, change.high
    if change.axis.kind == "integer":
        return (low + high) // 2 if high - low > 1 else None
    if change.relative_width() <= tolerance:
        return None
    return math.sqrt(low * high) if change.axis.log and low > 0 else (low + high) / 2


def break_even_rows(swept: FinishedSweep, changes: Sequence[BreakEven]) -> list[dict[str, object]]:
    """The break-even points as plain data."""
    names = {axis.index: axis.column for axis in swept.axes}
    return [
        {
            "axis": change.axis.column,
            "low": change.low,
            "high": change.high,
            "before": change.before,
            "after": change.after,
            "at": {
                **({"scenario": swept.scenarios[change.condition.scenario]} if len(swept.scenarios) > 1 else {}),
                **{names[index]: value.cell for index, value in change.condition.values if index != change.axis.index},
            },
        }
        for change in changes
    ]
