"""Adaptive sampling: chooses the next shape to measure where interpolation between measured ones is worst.

A family's points form a box of candidate sizes. The box is cut into cells whose corners are all measured; inside a cell
log(latency / reference) is interpolated linearly in the logarithm of each axis, as cost models read tables. Cutting a
cell in the middle of one axis measures the corners of the cut, and how far they lie from what the cell predicted is the
error of that axis. Linear interpolation errs with the square of the width, so the halves are expected to err a quarter
of that. The next cell is the one with most expected error, times the share of the family's sizes that it covers: a jump
of the kernel is closed in on, but does not swallow all points.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from planner.hardware.profiling.shapes import Family

Point = tuple[int, ...]
Reference = Callable[[Point], float]

UNTRIED = 0.25  # expected error of an axis that was never cut: a quarter of a doubling's worth
_QUARTER = 0.25


@dataclass(frozen=True, slots=True)
class GridCell:
    """Index ranges into the axes of a family, and the error expected from each axis [log ratio]."""

    low: Point
    high: Point
    errors: tuple[float, ...]

    @property
    def volume(self) -> int:
        """Candidates inside: of cells that share a side, the smaller one has more of its points measured."""
        return math.prod(high - low + 1 for low, high in zip(self.low, self.high, strict=True))

    @property
    def worst_axis(self) -> int | None:
        """The axis to cut, None when no axis has a candidate between its ends."""
        wide = [axis for axis, (low, high) in enumerate(zip(self.low, self.high, strict=True)) if high - low > 1]
        return max(wide, key=lambda axis: self.errors[axis], default=None)


@dataclass(slots=True)
class Refinement:
    """The cells of one family and what was measured at their corners (seconds by index point)."""

    family: Family
    reference: Reference  # seconds at a point of sizes
    measured_s: dict[Point, float] = field(default_factory=dict)
    leaves: list[GridCell] = field(default_factory=list)

    @property
    def axes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(values for _, values in self.family.sweep)

    def root(self) -> GridCell:
        """The whole box."""
        tops = tuple(len(axis) - 1 for axis in self.axes)
        return GridCell((0,) * len(tops), tops, (UNTRIED,) * len(tops))

    def share(self, cell: GridCell) -> float:
        """The part of the box that a cell covers, measured in the logarithms of the axes."""
        covered = 1.0
        for axis, low, high in zip(self.axes, cell.low, cell.high, strict=True):
            if len(axis) > 1:
                covered *= math.log(axis[high] / axis[low]) / math.log(axis[-1] / axis[0])
        return covered

    def sizes(self, index: Point) -> Point:
        return tuple(axis[i] for axis, i in zip(self.axes, index, strict=True))

    def log_ratio(self, index: Point) -> float:
        return float(np.log(self.measured_s[index] / self.reference(self.sizes(index))))

    def predict_s(self, sizes: tuple[float, ...]) -> float:
        """Seconds at any sizes, from the cell that holds them; sizes outside the box keep the ratio of its edge."""
        inside = tuple(float(np.clip(size, axis[0], axis[-1])) for axis, size in zip(self.axes, sizes, strict=True))
        cell = min((leaf for leaf in self.leaves if self._holds(leaf, inside)), key=lambda leaf: leaf.volume)
        reference_s = self.reference(tuple(round(size) for size in sizes))
        return float(reference_s * np.exp(self._interpolate(cell, inside)))

    def _holds(self, cell: GridCell, sizes: tuple[float, ...]) -> bool:
        bounds = zip(self.axes, cell.low, cell.high, sizes, strict=True)
        return all(axis[low] <= size <= axis[high] for axis, low, high, size in bounds)

    def _interpolate(self, cell: GridCell, sizes: tuple[float, ...]) -> float:
        """Multilinear in the logarithms of the axes over the corners of `cell`."""
        total = 0.0
        for corner in corners(cell.low, cell.high):
            weight = 1.0
            for axis, low, high, size, index in zip(self.axes, cell.low, cell.high, sizes, corner, strict=True):
                if high > low:
                    fraction = float(np.log(size / axis[low]) / np.log(axis[high] / axis[low]))
                    weight *= fraction if index == high else 1.0 - fraction
            if weight:
                total += weight * self.log_ratio(corner)
        return total

    def cut(self, cell: GridCell, axis: int) -> Iterator[Point]:
        """The corners of the cut of `axis` at the candidate nearest to half-way in its logarithm."""
        sizes, low, high = self.axes[axis], cell.low[axis], cell.high[axis]
        target = math.sqrt(sizes[low] * sizes[high])
        middle = min(range(low + 1, high), key=lambda index: abs(math.log(sizes[index] / target)))
        yield from corners(_with(cell.low, axis, middle), _with(cell.high, axis, middle))

    def split(self, cell: GridCell, axis: int) -> tuple[GridCell, GridCell]:
        """Replaces a cell by its halves once the corners of the cut are measured."""
        cut = list(self.cut(cell, axis))
        largest = max(abs(self.log_ratio(p) - self._interpolate(cell, tuple(map(float, self.sizes(p))))) for p in cut)
        errors = tuple(largest * _QUARTER if a == axis else error for a, error in enumerate(cell.errors))
        middle = cut[0][axis]
        halves = (
            GridCell(cell.low, _with(cell.high, axis, middle), errors),
            GridCell(_with(cell.low, axis, middle), cell.high, errors),
        )
        self.leaves.remove(cell)
        self.leaves += halves
        return halves


def corners(low: Point, high: Point) -> Iterator[Point]:
    """All corners of a box of indices, each once."""
    yield from itertools.product(*(dict.fromkeys(ends) for ends in zip(low, high, strict=True)))


def _with(point: Point, axis: int, value: int) -> Point:
    return (*point[:axis], value, *point[axis + 1 :])


Measure = Callable[[Family, Point], float | None]
"""Seconds at the given sizes; None when the kernel cannot run there or time is up."""


def refine(
    families: list[Family],
    reference: Mapping[str, Reference],
    measure: Measure,
    *,
    tolerance: float = 0.02,
    enough: Callable[[], bool] = lambda: False,
) -> list[Refinement]:
    """Measures the corners of every family, then the worst cell of all until `enough` or all errors are expected below
    `tolerance` (log ratio). `reference` is by name of the family.

    Returns the families whose corners were all measured; those that could not be are left out.
    """
    queue: list[tuple[float, int, Refinement, GridCell]] = []
    order = itertools.count()
    done: list[Refinement] = []
    for family in families:
        refinement = Refinement(family, reference[family.name])
        root = refinement.root()
        if _measure_all(refinement, corners(root.low, root.high), measure):
            refinement.leaves = [root]
            done.append(refinement)
            _push(queue, order, refinement, root, tolerance)
    while queue and not enough():
        _, _, refinement, cell = heapq.heappop(queue)
        axis = cell.worst_axis
        assert axis is not None
        if _measure_all(refinement, refinement.cut(cell, axis), measure):
            for half in refinement.split(cell, axis):
                _push(queue, order, refinement, half, tolerance)
    return done


def _push(
    queue: list[tuple[float, int, Refinement, GridCell]],
    order: Iterator[int],
    refinement: Refinement,
    cell: GridCell,
    tolerance: float,
) -> None:
    axis = cell.worst_axis
    if axis is not None and cell.errors[axis] > tolerance:
        heapq.heappush(queue, (-cell.errors[axis] * refinement.share(cell), next(order), refinement, cell))


def _measure_all(refinement: Refinement, points: Iterator[Point], measure: Measure) -> bool:
    for index in points:
        if index in refinement.measured_s:
            continue
        seconds = measure(refinement.family, refinement.sizes(index))
        if seconds is None:
            return False
        refinement.measured_s[index] = seconds
    return True
