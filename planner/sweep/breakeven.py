"""Break-even points: where along a numeric axis, all else equal, the decision changes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from planner.sweep.axes import Axis
from planner.sweep.decisions import Decider, Decision, Place
from planner.sweep.run import Swept

_MAX_ROUNDS = 60  # bisections of one interval; a double has no more


@dataclass(frozen=True, slots=True)
class BreakEven:
    """The decision is `before` at `low` and `after` at `high`; it changes between the two, cells of the axis."""

    axis: Axis
    place: Place  # at `low`
    low: float
    high: float
    before: str
    after: str

    def relative_width(self) -> float:
        """The width of the interval over its larger end."""
        return (self.high - self.low) / max(abs(self.low), abs(self.high), 1e-300)


def break_evens(swept: Swept, *, narrow: bool, tolerance: float) -> list[BreakEven]:
    """Every change of the decision between neighbours along each numeric axis, narrowed to `tolerance` if asked.

    Neighbours with all else equal are known in grids, and on a sweep of one axis.
    """
    decider = Decider(swept)
    found = [
        BreakEven(axis, low, _cell(low, axis), _cell(high, axis), before.label, after.label)
        for axis, low, before, high, after in neighbours(swept, decider.all())
        if before.label is not None and after.label is not None and before.label != after.label
    ]
    return _narrowed(found, decider, tolerance) if narrow else found


def neighbours(
    swept: Swept, decided: Sequence[tuple[Place, Decision]]
) -> list[tuple[Axis, Place, Decision, Place, Decision]]:
    """Pairs of places that differ by one step along one numeric axis, in order of the axes and places."""
    varied = [axis for axis in swept.axes if not axis.choice]
    if swept.sweep.spec.mode != "grid" and len(varied) > 1:
        return []
    pairs = []
    for axis in varied:
        if not axis.numeric:
            continue
        lines: dict[object, list[tuple[Place, Decision]]] = {}
        for place, decision in decided:
            lines.setdefault(place.without(axis.index), []).append((place, decision))
        for line in lines.values():
            line.sort(key=lambda entry: _cell(entry[0], axis))
            pairs += [(axis, *low, *high) for low, high in pairwise(line)]
    return pairs


def _cell(place: Place, axis: Axis) -> float:
    return float(place.value(axis.index).cell)


def _narrowed(found: list[BreakEven], decider: Decider, tolerance: float) -> list[BreakEven]:
    """Bisection of all intervals at once, a round of solves at a time; each keeps its first decision at its low end."""
    for _ in range(_MAX_ROUNDS):
        middles = {at: middle for at, one in enumerate(found) if (middle := _middle(one, tolerance)) is not None}
        if not middles:
            break
        places = [found[at].place.moved(found[at].axis.index, found[at].axis.at(middles[at])) for at in middles]
        for at, place, decision in zip(middles, places, decider.at(places), strict=True):
            one, middle = found[at], _cell(place, found[at].axis)
            if decision.label == one.before:
                found[at] = replace(one, low=middle, place=place)
            else:
                found[at] = replace(one, high=middle, after=decision.label or one.after)
    return found


def _middle(one: BreakEven, tolerance: float) -> float | None:
    """Where to look next; None when the interval is narrow enough."""
    if one.axis.kind == "integer":
        return (one.low + one.high) // 2 if one.high - one.low > 1 else None
    if one.relative_width() <= tolerance:
        return None
    geometric = one.axis.log and one.low > 0
    return math.sqrt(one.low * one.high) if geometric else (one.low + one.high) / 2


def break_even_rows(swept: Swept, found: Sequence[BreakEven]) -> list[dict[str, object]]:
    """The break-even points as plain data."""
    names = {axis.index: axis.column for axis in swept.axes}
    return [
        {
            "axis": one.axis.column,
            "low": one.low,
            "high": one.high,
            "before": one.before,
            "after": one.after,
            "at": {
                **({"scenario": swept.scenarios[one.place.scenario]} if len(swept.scenarios) > 1 else {}),
                **{names[index]: value.cell for index, value in one.place.values if index != one.axis.index},
            },
        }
        for one in found
    ]
