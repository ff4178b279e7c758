"""The decision at every condition of a sweep: the plan, or the best value of the axes that are choices."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import isclose

from planner.sweep.axes import AxisCell, AxisValue, SweepAxis, SweepPoint
from planner.sweep.journal import WITHOUT_PLAN, PointRecord
from planner.sweep.runner import FinishedSweep

NO_PLAN = "no plan"
SAME = 1e-9  # relative difference of objectives that are one value


@dataclass(frozen=True, slots=True)
class Condition:
    """A scenario and one value on every axis that is no choice."""

    scenario: int
    values: tuple[tuple[int, AxisValue], ...]  # by axis

    @property
    def cells(self) -> tuple[int, tuple[AxisCell, ...]]:
        """What tells conditions apart."""
        return self.scenario, tuple(value.cell for _, value in self.values)

    def without(self, axis: int) -> tuple[int, tuple[AxisCell, ...]]:
        """What conditions along `axis` have in common."""
        return self.scenario, tuple(value.cell for index, value in self.values if index != axis)

    def value(self, axis: int) -> AxisValue:
        """The value on one axis."""
        return next(value for index, value in self.values if index == axis)

    def amount(self, axis: int) -> float:
        """The cell on one axis, which is numeric."""
        return float(self.value(axis).cell)

    def moved(self, axis: int, value: AxisValue) -> "Condition":
        """The condition with another value on one axis."""
        values = tuple((index, value if index == axis else old) for index, old in self.values)
        return Condition(self.scenario, values)


@dataclass(frozen=True, slots=True)
class BestOption:
    """What is best in a condition; no label where a point there could not be solved."""

    label: str | None
    objective: float | None


Decided = tuple[Condition, BestOption]


class Decider:
    """Decisions of a finished sweep, and of conditions between its points."""

    def __init__(self, swept: FinishedSweep) -> None:
        self._swept = swept
        self.choices = tuple(axis for axis in swept.axes if axis.choice)

    def all(self) -> list[Decided]:
        """Every condition of the sweep with its decision, in order of first appearance."""
        options_of: dict[tuple[int, tuple[AxisCell, ...]], tuple[Condition, list[tuple[str, PointRecord]]]] = {}
        for point, record in zip(self._swept.points, self._swept.records(), strict=True):
            condition = self._condition(point)
            _, options = options_of.setdefault(condition.cells, (condition, []))
            options.append((self._choice(point), record))
        return [(condition, _decide(options)) for condition, options in options_of.values()]

    def decide(self, conditions: Sequence[Condition]) -> list[BestOption]:
        """The decisions in other conditions, solved where they are not known."""
        points = [self._points(condition) for condition in conditions]
        keys = iter(self._swept.runner.solve([point for group in points for point in group], "break-even points"))
        records = [
            [(self._choice(point), self._swept.runner.record(next(keys))) for point in group] for group in points
        ]
        return [_decide(options) for options in records]

    def _condition(self, point: SweepPoint) -> Condition:
        kept = ((axis.index, point.values[axis.index]) for axis in self._swept.axes if not axis.choice)
        return Condition(point.scenario, tuple(kept))

    def _points(self, condition: Condition) -> list[SweepPoint]:
        known = dict(condition.values)
        axes: Sequence[SweepAxis] = self._swept.axes
        options = product(*(axis.values if axis.choice else (known[axis.index],) for axis in axes))
        return [SweepPoint(condition.scenario, values) for values in options]

    def _choice(self, point: SweepPoint) -> str:
        return ", ".join(str(point.values[axis.index].cell) for axis in self.choices)


def _decide(options: Sequence[tuple[str, PointRecord]]) -> BestOption:
    """The best of the options in one condition; equal ones are named together."""
    if any(record["status"] not in ("ok", *WITHOUT_PLAN) for _, record in options):
        return BestOption(None, None)
    feasible = [(name, record) for name, record in options if record["status"] == "ok"]
    if not feasible:
        return BestOption(NO_PLAN, None)
    sign = -1.0 if feasible[0][1]["sense"] == "maximize" else 1.0
    _, best = min(feasible, key=lambda option: sign * option[1]["objective"])
    equal = [name for name, record in feasible if isclose(record["objective"], best["objective"], rel_tol=SAME)]
    return BestOption(" or ".join(equal) or best["plan"], best["objective"])


def lines_along(axis: SweepAxis, decided: Sequence[Decided]) -> list[list[Decided]]:
    """Conditions that differ on `axis` alone, line by line, each in the order of its values."""
    lines: dict[object, list[Decided]] = {}
    for condition, decision in decided:
        lines.setdefault(condition.without(axis.index), []).append((condition, decision))
    if axis.numeric:
        for line in lines.values():
            line.sort(key=lambda entry: entry[0].amount(axis.index))
    return list(lines.values())
