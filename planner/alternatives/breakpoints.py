"""Breakpoints of the decision along a line: where the best objective changes, and nothing between them unseen.

What is best along the line is chosen by step functions that only rise or only fall (`Best.choices`), and is the same
where these are. Where the kind can say how far that reaches, the next breakpoint is found at once; elsewhere intervals
whose ends differ are halved.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from planner.errors import PlannerError

RESOLUTION = 1e-4  # of the line, to which intervals are halved
_BEYOND = 1e-6  # relative: just behind a breakpoint
_FURTHER = 10.0  # times the step before, where the solver's tolerance leaves the value as it was
_SAME = 1e-9  # relative; objectives this near are equal
_MOST = 10_000  # segments of a line


class Best(Protocol):
    """What is best at a value of a line, and what it was chosen by: step functions that only rise or only fall."""

    @property
    def objective(self) -> float | None: ...

    @property
    def decision(self) -> str: ...

    @property
    def choices(self) -> tuple[float | None, ...]: ...


class Steps(Protocol):
    """What is best at each value of a line."""

    @property
    def whole(self) -> bool: ...

    def at(self, value: float) -> Best: ...

    def reach(self, value: float, best: Any) -> float | None: ...  # noqa: ANN401 - what `at` gave

    def why(self, value: float) -> str: ...


@dataclass(frozen=True, slots=True)
class Segment:
    """From `low` to `high` the best objective is the same; None: no plan there. Between two of them lies `width`."""

    low: float
    high: float
    objective: float | None
    decision: str


def segments(line: Steps, low: float, high: float, tell: Callable[[str], None] = lambda message: None) -> list[Segment]:
    """The segments of a line from one end to the other; raises PlannerError for ends that are none."""
    if not 0.0 < low < high:
        raise PlannerError(
            f"a line from {low:g} to {high:g}", where="--parametric", hint="write for example `rate=5/s..50/s`"
        )
    best: Best = line.at(low)
    if best.objective is not None and line.reach(low, best) is not None:
        return _marched(line, low, high, tell)
    seen: dict[float, Best] = {low: best, high: line.at(high)}
    _halve(line, low, high, seen, (high - low) * RESOLUTION, tell)
    return _joined(seen)


def with_reasons(line: Steps, told: list[Segment]) -> list[Segment]:
    """Segments without a plan with the limits in conflict at their end that is nearest to a plan."""
    return [
        row
        if row.objective is not None
        else replace(row, decision=f"{row.decision}: {line.why(_nearest(told, place))}")
        for place, row in enumerate(told)
    ]


def _nearest(told: list[Segment], place: int) -> float:
    """The low end where plans lie below it, the high end where they lie above."""
    return told[place].low if place else told[place].high


def _marched(line: Steps, low: float, high: float, tell: Callable[[str], None]) -> list[Segment]:
    told: list[Segment] = []
    at, step = low, _BEYOND
    while at <= high and len(told) < _MOST:
        best: Best = line.at(at)
        value = best.objective
        tell(f"at {at:.4g}: {best.decision}")
        end = high if value is None else min(line.reach(at, best) or high, high)
        again = bool(told) and _equal(told[-1].objective, value)
        if again:
            told[-1] = Segment(told[-1].low, max(end, at), value, told[-1].decision)
        else:
            told.append(Segment(at, max(end, at), value, best.decision))
        if value is None or end >= high:
            break
        step = step * _FURTHER if again else _BEYOND
        at = max(end, at) * (1.0 + step)
    return told


def _halve(
    line: Steps,
    low: float,
    high: float,
    seen: dict[float, Best],
    width: float,
    tell: Callable[[str], None],
) -> None:
    if _alike(seen[low], seen[high]) or high - low <= (1.0 if line.whole else width):
        return
    middle = float((low + high) // 2) if line.whole else (low + high) / 2.0
    seen[middle] = line.at(middle)
    tell(f"at {middle:.4g}: {seen[middle].decision}")
    _halve(line, low, middle, seen, width, tell)
    _halve(line, middle, high, seen, width, tell)


def _joined(seen: dict[float, Best]) -> list[Segment]:
    told: list[Segment] = []
    for value in sorted(seen):
        objective, decision = seen[value].objective, seen[value].decision
        if told and _equal(told[-1].objective, objective):
            told[-1] = Segment(told[-1].low, value, objective, told[-1].decision)
        else:
            told.append(Segment(value, value, objective, decision))
    return told


def _alike(left: Best, right: Best) -> bool:
    """Whether both were chosen by the same, and so is all between them."""
    if len(left.choices) != len(right.choices) or not _equal(left.objective, right.objective):
        return False
    return all(_equal(own, other) for own, other in zip(left.choices, right.choices, strict=True))


def _equal(left: float | None, right: float | None) -> bool:
    if left is None or right is None:
        return left is right
    return abs(left - right) <= _SAME * max(abs(left), abs(right))
