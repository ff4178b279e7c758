"""Correction of layer times by measured runs: a Gaussian process over shapes, which fades with distance.

Formulas err by shape: kernels are chosen by size, and hosts differ from code to code. Where runs with the same shard
were measured, a Gaussian process on the logarithm of measured over predicted steps carries their mean over (Kennedy and
O'Hagan, "Bayesian calibration of computer models", JRSS B 63 (2001), the discrepancy term), with the kernel

    k(x, y) = sum over d of exp(-8 (x_d - y_d)^2), x in doublings, equal kinds only, half between accelerators,

so that its weights alone need storing: log factor = sum over measured shapes of weight k(x, shape).
"""

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib import resources
from typing import NamedTuple

import numpy as np

from planner.arrays import Floats
from planner.costs.training.config import Machine, Shard, TrainingConfig
from planner.documents.files import digest
from planner.models.architecture import Layer, MoeFfn

FADING = 8.0  # of the squared distance in doublings
OTHER_ACCELERATOR = 0.5  # of one generation
NEAR = 0.7  # of the kernel: a fifth of a doubling in one size


class ShapeKind(NamedTuple):
    """What must be equal for one measured layer to tell about another."""

    code: str  # kernel of the attention, launching host, fused or not
    generation: str
    precision: str
    ffn: str  # dense or moe
    adapted: bool


class LayerShape(NamedTuple):
    """A layer on one rank."""

    kind: ShapeKind
    accelerator: str
    sizes: tuple[float, ...]  # hidden, tp, tokens, sequence, cp, ep


class MeasuredShape(NamedTuple):
    """A shape that was measured, with its weight in the process."""

    shape: LayerShape
    weight: float


def main_shape(config: TrainingConfig) -> LayerShape:
    """Of the layer that most of the model is made of."""
    layer, _ = max(config.arch.layer_groups(), key=lambda group: group[1])
    return shape_of(config.machine, layer, config.shard)


@lru_cache(maxsize=65536)
def shape_of(machine: Machine, layer: Layer, shard: Shard) -> LayerShape:
    """The shape of one layer; one without experts is the same however experts are spread."""
    code = f"{shard.attention}/{shard.host}/{'fused' if shard.fused else 'unfused'}"
    sparse = isinstance(layer.ffn, MoeFfn)
    ffn = "moe" if sparse else "dense"
    kind = ShapeKind(code, machine.generation, shard.precision, ffn, shard.lora_rank > 0)
    sizes = (shard.hidden, shard.tp, shard.tokens, shard.sequence_tokens, shard.cp, shard.ep if sparse else 1)
    return LayerShape(kind, machine.node.accelerator.name, tuple(float(size) for size in sizes))


def nearness(shapes: Iterable[LayerShape], others: Iterable[LayerShape]) -> Floats:
    """The kernel between shapes [A] of one kind and others [B] of the same: [A, B]."""
    left, right = tuple(shapes), tuple(others)
    sizes_A, sizes_B = (np.log2(np.array([shape.sizes for shape in side])) for side in (left, right))
    apart = ((sizes_A[:, None, :] - sizes_B[None, :, :]) ** 2).sum(axis=2)
    names_A, names_B = (np.array([shape.accelerator for shape in side]) for side in (left, right))
    alike = np.where(names_A[:, None] == names_B[None, :], 1.0, OTHER_ACCELERATOR)
    return np.asarray(alike * np.exp(-FADING * apart))


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredShapes:
    """All measured shapes, by kind."""

    measured: tuple[MeasuredShape, ...]
    _of_kind: dict[ShapeKind, tuple[tuple[LayerShape, ...], Floats]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        grouped: dict[ShapeKind, list[MeasuredShape]] = {}
        for measured in self.measured:
            grouped.setdefault(measured.shape.kind, []).append(measured)
        for kind, known in grouped.items():
            weights = np.array([measured.weight for measured in known])
            self._of_kind[kind] = tuple(measured.shape for measured in known), weights

    def factor(self, shape: LayerShape) -> float:
        """Measured over predicted seconds of a layer of this shape; 1 where nothing near was measured."""
        known = self._of_kind.get(shape.kind)
        if known is None:
            return 1.0
        return float(np.exp(nearness((shape,), known[0])[0] @ known[1]))

    def knows(self, shape: LayerShape) -> bool:
        """Whether a shape next to this one was measured."""
        known = self._of_kind.get(shape.kind)
        return known is not None and bool(nearness((shape,), known[0]).max() > NEAR)


NONE = MeasuredShapes(())
COLUMNS = (*ShapeKind._fields, "accelerator", "hidden", "tp", "tokens", "sequence", "cp", "ep", "weight")


def written(shapes: MeasuredShapes) -> Iterator[str]:
    """The lines of a table of these shapes."""
    yield ",".join(COLUMNS)
    for shape, weight in shapes.measured:
        cells = (*map(str, shape.kind), shape.accelerator, *(f"{size:g}" for size in shape.sizes), f"{weight:.5f}")
        yield ",".join(cells)


@cache
def digest_of(shapes: MeasuredShapes) -> str:
    """Of the table of these shapes."""
    return digest(list(written(shapes)))


def read(lines: Iterable[str]) -> MeasuredShapes:
    """The shapes of such a table."""
    return MeasuredShapes(tuple(_measured(row) for row in csv.DictReader(lines)))


def _measured(row: dict[str, str]) -> MeasuredShape:
    kind = ShapeKind(row["code"], row["generation"], row["precision"], row["ffn"], row["adapted"] == "True")
    sizes = tuple(float(row[name]) for name in ("hidden", "tp", "tokens", "sequence", "cp", "ep"))
    return MeasuredShape(LayerShape(kind, row["accelerator"], sizes), float(row["weight"]))


@cache
def default_shapes() -> MeasuredShapes:
    """The shapes that come with the package."""
    table = resources.files("planner.costs.training").joinpath("measured_shapes.csv").read_text(encoding="utf-8")
    return read(table.splitlines())
