"""Physical bounds of every parameter of training costs: starts, waits, launches and shares, with their sources.

`bounds.csv` has a row for each start, wait, launch and exposed share, and one for all shares of a data-sheet rate of a
kind. Fits take them as bounds of their least squares, so that no constant stands for what the model leaves out.
"""

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources

BY_KIND = ("flop", "move", "link", "fabric", "sustained")
"""Shares of data-sheet rates, bounded by kind; every other parameter has a row of its own."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The least and the most that a parameter can be, in SI units, and who says so."""

    lower: float
    upper: float
    unit: str
    source: str

    def holds(self, value: float) -> bool:
        return self.lower <= value <= self.upper


@cache
def bounds() -> dict[str, Bound]:
    """By the name of the parameter, or of its kind."""
    text = resources.files("planner.costs.training.physics").joinpath("bounds.csv").read_text(encoding="utf-8")
    return {
        row["name"]: Bound(float(row["lower"]), float(row["upper"]), row["unit"], row["source"])
        for row in csv.DictReader(text.splitlines())
    }


def bound_of(name: str) -> Bound:
    """The bound of a parameter; raises KeyError where the table has none."""
    kind = name.partition(".")[0]
    return bounds()[kind if kind in BY_KIND else name]
