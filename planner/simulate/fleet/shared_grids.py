"""Step times that fleets of one problem share: many plans have engines alike, and streams of many lengths."""

from collections.abc import Callable
from dataclasses import dataclass, field

from planner.simulate.fleet.step_grid import StepGrid

LONGER = 1.3  # times the longest request, where requests turn out longer than those before
MOST_LONGER = 2.0  # times the longest request: a table that reaches further is too coarse there


@dataclass(slots=True)
class SharedGrids:
    """Tables by what they are priced for, each with the longest request that it reaches."""

    _made: dict[object, list[tuple[int, StepGrid]]] = field(default_factory=dict)
    _reached: dict[object, int] = field(default_factory=dict)  # by model

    def grid(self, model: object, key: object, longest: int, most: int, make: Callable[[int], StepGrid]) -> StepGrid:
        """A table that reaches the `longest` request and not far beyond, `make` making it for its longest request.

        Equal lengths are priced exactly; of random ones each stream has a longest request of its own, and tables reach
        beyond it, up to `most`, once they were found too short.
        """
        tables = self._made.setdefault((model, key), [])
        for reach, grid in tables:
            if longest <= reach <= MOST_LONGER * longest:
                return grid
        before = self._reached.get(model, longest)
        if longest > before:
            before = int(LONGER * longest)
        self._reached[model] = before
        reach = min(before, most) if longest <= before <= MOST_LONGER * longest else longest
        tables.append((reach, make(reach)))
        return tables[-1][1]
