"""The decision at every place of a sweep: the plan, or the best value of the axes that are choices."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from planner.sweep.axes import Axis, Cell, Point, Value
from planner.sweep.journal import Record
from planner.sweep.run import Swept

NO_PLAN = "no plan"


@dataclass(frozen=True, slots=True)
class Place:
    """A scenario and one value on every axis that is no choice."""

    scenario: int
    values: tuple[tuple[int, Value], ...]  # by axis

    @property
    def cells(self) -> tuple[int, tuple[Cell, ...]]:
        """What tells places apart."""
        return self.scenario, tuple(value.cell for _, value in self.values)

    def without(self, axis: int) -> tuple[int, tuple[Cell, ...]]:
        """What places along `axis` have in common."""
        return self.scenario, tuple(value.cell for index, value in self.values if index != axis)

    def value(self, axis: int) -> Value:
        """The value on one axis."""
        return next(value for index, value in self.values if index == axis)

    def moved(self, axis: int, value: Value) -> "Place":
        """The place with another value on one axis."""
        values = tuple((index, value if index == axis else old) for index, old in self.values)
        return Place(self.scenario, values)


@dataclass(frozen=True, slots=True)
class Decision:
    """What is best at a place; no label where a point there could not be judged."""

    label: str | None
    objective: float | None


class Decider:
    """Decisions of a finished sweep, and of places between its points."""

    def __init__(self, swept: Swept) -> None:
        self._swept = swept
        self.choices = tuple(axis for axis in swept.axes if axis.choice)

    def all(self) -> list[tuple[Place, Decision]]:
        """Every place of the sweep with its decision, in order of first appearance."""
        there: dict[tuple[int, tuple[Cell, ...]], tuple[Place, list[tuple[str, Record]]]] = {}
        for point, record in zip(self._swept.points, self._swept.records(), strict=True):
            place = self._place(point)
            _, options = there.setdefault(place.cells, (place, []))
            options.append((self._choice(point), record))
        return [(place, _decide(options)) for place, options in there.values()]

    def at(self, places: Sequence[Place]) -> list[Decision]:
        """The decisions at other places, solved where they are not known."""
        points = [self._points(place) for place in places]
        keys = iter(self._swept.runner.solve([point for group in points for point in group], "break-even points"))
        records = [
            [(self._choice(point), self._swept.runner.record(next(keys))) for point in group] for group in points
        ]
        return [_decide(options) for options in records]

    def _place(self, point: Point) -> Place:
        kept = ((axis.index, point.values[axis.index]) for axis in self._swept.axes if not axis.choice)
        return Place(point.scenario, tuple(kept))

    def _points(self, place: Place) -> list[Point]:
        known = dict(place.values)
        axes: Sequence[Axis] = self._swept.axes
        options = product(*(axis.values if axis.choice else (known[axis.index],) for axis in axes))
        return [Point(place.scenario, values) for values in options]

    def _choice(self, point: Point) -> str:
        return ", ".join(str(point.values[axis.index].cell) for axis in self.choices)


def _decide(options: Sequence[tuple[str, Record]]) -> Decision:
    """The best of the options at one place; of equal ones the first."""
    if any(record["status"] not in ("ok", "infeasible") for _, record in options):
        return Decision(None, None)
    feasible = [(name, record) for name, record in options if record["status"] == "ok"]
    if not feasible:
        return Decision(NO_PLAN, None)
    sign = -1.0 if feasible[0][1]["sense"] == "maximize" else 1.0
    name, best = min(feasible, key=lambda option: sign * option[1]["objective"])
    return Decision(name or best["plan"], best["objective"])
