"""Calibrated rates of training: shares of data-sheet rates that kernels reach, launch and exchange overheads.

A rate is looked up by kind and generation, then by kind, then by what the kind is a part of: `flop.gemm.bf16.hopper`,
`flop.gemm.bf16`, `flop.gemm.hopper`, `flop.gemm`. Values stand in section `training` of a calibration file, with the
data that they were fitted to. Kernel tables take the place of the rates of products where they hold these.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from planner.arrays import Floats
from planner.costs.rates.calibration import SHIPPED, load_calibration
from planner.costs.training.products import MeasuredProducts, measured_products
from planner.costs.training.shapes import NONE, MeasuredShapes, default_shapes, digest_of
from planner.documents.files import digest
from planner.errors import PlannerError
from planner.hardware.cluster import Pool
from planner.hardware.profiles.store import ProfileStore
from planner.models.architecture import Architecture

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
    spread_by_distance: float = 0.0  # by how much these widen at one unit from the nearest measured layout
    products: MeasuredProducts | None = None
    _found: dict[tuple[str, str], tuple[float, ...]] = field(default_factory=dict, repr=False)

    @property
    def digest(self) -> str:
        """Of the rates, the factors of measured shapes and the spread of errors; not of the kernel tables."""
        spread = {name: list(logs) for name, logs in self.spread.items()}
        widened = {"by_distance": self.spread_by_distance} if self.spread_by_distance else {}
        return digest({"rates": dict(self.values), "spread": spread, **widened, "shapes": digest_of(self.shapes)})

    def get(self, name: str, generation: str = "") -> float:
        """The parameter of this generation, or the common one; raises KeyError where there is neither."""
        specific = f"{name}.{generation}"
        return self.values[specific] if specific in self.values else self.values[name]

    def of(self, kinds: tuple[str, ...], generation: str) -> Floats:
        """Rates [R, K] in the order of COLUMNS.

        `generation` may name an accelerator behind a colon: products then reach `sustained.<accelerator>` of what the
        generation's do, for boards of one data-sheet peak hold other clocks at other power.
        """
        return np.array([self._row(kind, generation) for kind in kinds], dtype=np.float64).T

    def _row(self, kind: str, generation: str) -> tuple[float, ...]:
        row = self._found.get((kind, generation))
        if row is None:
            names = [f"{column}.{kind}" for column in COLUMNS]
            shared, _, accelerator = generation.partition(":")
            row = tuple(self._find(n, shared, d) for n, d in zip(names, _NEUTRAL, strict=True))
            row = (row[0] * self.values.get(f"sustained.{accelerator}", 1.0), *row[1:])
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


def load_rates(name: str = "default") -> Rates:
    """The training rates of a calibration: `default` (shipped), `none` (ideal machine), or the file at that path.

    Raises PlannerError for a file without a section `training`.
    """
    return _loaded(name)


@cache
def _loaded(name: str) -> Rates:
    section = load_calibration(name).training
    if section is None:
        raise PlannerError(
            "has no section `training`",
            where=name,
            hint="copy that of planner/costs/rates/calibration.yaml, or refit it with `planner calibrate -o`",
        )
    shapes = default_shapes() if section.shapes == SHIPPED else NONE
    spread = (section.spread, section.spread_by_distance)
    return Rates(section.rates, section.source, section.date, section.data, section.errors, shapes, *spread)


def default_rates() -> Rates:
    """The rates that come with the package."""
    return load_rates()


def rates_on(pool: Pool, arch: Architecture, calibration: str, store: ProfileStore | None) -> Rates:
    """The rates of a calibration, with what the tables of a store hold of this pool's accelerator."""
    rates = load_rates(calibration)
    products = measured_products(pool, arch, load_calibration(calibration), store)
    return rates if products is None else replace(rates, products=products, _found={})
