"""Calibrated rates of training: shares of data-sheet rates that kernels reach, launch and exchange overheads.

A rate is looked up by kind and generation, then by kind, then by what the kind is a part of: `flop.gemm.bf16.hopper`,
`flop.gemm.bf16`, `flop.gemm.hopper`, `flop.gemm`. Values stand in
`calibration.yaml` beside this module, with the data that they were fitted to.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

import numpy as np

from planner.arrays import Floats
from planner.costs.training.shapes import NONE, MeasuredShapes, default_shapes
from planner.documents.read import parse_document

COLUMNS = ("flop", "move", "link", "fabric", "start", "exposed")
_NEUTRAL = (1.0, 1.0, 1.0, 1.0, 0.0, 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class Rates:
    """Parameters by name; hashes by identity, so that costs are kept for each calibration apart."""

    values: Mapping[str, float]
    source: str = ""
    date: str = ""
    data: str = ""
    errors: Mapping[str, float] = field(default_factory=dict)  # standard error of the logarithm of each
    shapes: MeasuredShapes = NONE
    spread: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # logs of an 80 % interval, by class
    _found: dict[tuple[str, str], tuple[float, ...]] = field(default_factory=dict, repr=False)

    def get(self, name: str, generation: str = "") -> float:
        """The parameter of this generation, or the common one; raises KeyError where there is neither."""
        specific = f"{name}.{generation}"
        return self.values[specific] if specific in self.values else self.values[name]

    def of(self, kinds: tuple[str, ...], generation: str) -> Floats:
        """Rates [R, K] in the order of COLUMNS."""
        return np.array([self._row(kind, generation) for kind in kinds], dtype=np.float64).T

    def _row(self, kind: str, generation: str) -> tuple[float, ...]:
        row = self._found.get((kind, generation))
        if row is None:
            names = [f"{column}.{kind}" for column in COLUMNS]
            row = tuple(self._find(n, generation, d) for n, d in zip(names, _NEUTRAL, strict=True))
            self._found[kind, generation] = row
        return row

    def _find(self, name: str, generation: str, default: float) -> float:
        """The value of `column.kind`, of this generation or of all; the kind is shortened until one is known."""
        while name:
            if f"{name}.{generation}" in self.values:
                return self.values[f"{name}.{generation}"]
            if name in self.values:
                return self.values[name]
            name = name.rpartition(".")[0]
        return default


@cache
def default_rates() -> Rates:
    """The calibration that comes with the package."""
    text = resources.files("planner.costs.training").joinpath("calibration.yaml").read_text(encoding="utf-8")
    document = parse_document(text, "training calibration").data
    return Rates(
        {name: float(value) for name, value in document["rates"].items()},
        source=str(document["source"]),
        date=str(document["date"]),
        data=str(document["data"]),
        errors={name: float(value) for name, value in document.get("errors", {}).items()},
        shapes=default_shapes(),
        spread={name: (float(low), float(high)) for name, (low, high) in document.get("spread", {}).items()},
    )
