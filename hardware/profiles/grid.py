"""Multilinear interpolation of a measured table in the logarithm of its axes, on a full grid made of ragged rows.

Shapes: N query points, C corners a point (at most 2^d for d axes), G cells of the flattened grid.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.arrays import Bools, Floats, Ints


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """A ragged table laid on a full grid: axes in increasing order, latency_s NaN where nothing was measured."""

    axes: tuple[Floats, ...]  # for a GEMM: m, n, k
    axis_names: tuple[str, ...]
    latency_s: Floats  # shape = lengths of the axes
    kernel_sources: tuple[str, ...]  # kernels behind the cells; a cell holds the fastest one measured there
    nearest: NDArray[np.int32]  # same shape; flat index of the nearest measured cell, its own where measured

    def filled(self, reference_s: ArrayLike) -> Floats:
        """log(latency / reference) of every cell, shape of the grid; an unmeasured cell takes its nearest one's.

        `reference_s` has the grid's shape: the times of a model (say a roofline) at the grid's points, all positive.
        """
        reference_G = np.asarray(reference_s, dtype=np.float64)
        if reference_G.shape != self.latency_s.shape:
            raise ValueError(f"reference has shape {reference_G.shape}, the grid {self.latency_s.shape}")
        ratio_G = np.log(self.latency_s.ravel() / reference_G.ravel())
        return ratio_G[self.nearest]

    def points(self) -> tuple[Floats, ...]:
        """The coordinates of every cell, one array of the grid's shape an axis."""
        return tuple(np.meshgrid(*self.axes, indexing="ij"))

    def at(self, name: str, value: float) -> "Grid | None":
        """The grid with one axis fixed to a value it holds, that axis removed; None where it does not hold it."""
        axis = self.axis_names.index(name)
        position = int(np.searchsorted(self.axes[axis], value))
        if position == len(self.axes[axis]) or self.axes[axis][position] != value:
            return None
        axes = self.axes[:axis] + self.axes[axis + 1 :]
        latency_s = np.take(self.latency_s, position, axis=axis)
        if np.isnan(latency_s).all():
            return None
        names = self.axis_names[:axis] + self.axis_names[axis + 1 :]
        return Grid(axes, names, latency_s, self.kernel_sources, nearest_measured(axes, latency_s))


@dataclass(frozen=True, slots=True, eq=False)
class Corners:
    """Where N query points lie on a grid; each row of weights sums to 1."""

    index: Ints  # [N, C] into the flattened grid
    weights: Floats  # [N, C]
    inside: Bools  # [N] False where a point was clamped to a range, or leans on an unmeasured cell

    def interpolate(self, values: Floats) -> Floats:
        """The weighted mean [N] of `values` (the grid's shape, no NaN) over the corners of each point."""
        result: Floats = np.einsum("nc,nc->n", self.weights, values.ravel()[self.index])
        return result


def fastest_of(grids: Sequence[Grid]) -> Grid:
    """One grid on all values of the axes of several, which must have the same ones: at each cell the least latency."""
    axes = tuple(np.unique(np.concatenate(values)) for values in zip(*(grid.axes for grid in grids), strict=True))
    latency_s = np.full(tuple(len(axis) for axis in axes), np.nan)
    for grid in grids:
        place = np.ix_(*(np.searchsorted(axis, own) for axis, own in zip(axes, grid.axes, strict=True)))
        latency_s[place] = np.fmin(latency_s[place], grid.latency_s)
    sources = tuple(dict.fromkeys(source for grid in grids for source in grid.kernel_sources))
    return Grid(axes, grids[0].axis_names, latency_s, sources, nearest_measured(axes, latency_s))


def coordinates(axis: Floats, values: Floats) -> Floats:
    """log2 of `values`, or log2(values + 1) on an axis that reaches 0 (such as a past length)."""
    return np.log2(values + 1.0) if axis[0] <= 0 else np.log2(values)


def corners(grid: Grid, points: tuple[ArrayLike, ...]) -> Corners:
    """The cells around each point and their weights, linear in log2 of each axis, clamped to the grid's range.

    `points` holds one array an axis, in the order of `grid.axes`; they are broadcast together and flattened to N.
    An axis on which every point falls exactly on a grid value adds no corners, so C is 2^(axes interpolated).
    """
    if len(points) != len(grid.axes):
        raise ValueError(f"the grid has axes {grid.axis_names}, found {len(points)} coordinates")
    points_N = [np.ravel(p) for p in np.broadcast_arrays(*(np.asarray(p, dtype=np.float64) for p in points))]
    num_points = len(points_N[0])
    brackets = [_bracket(axis, point_N) for axis, point_N in zip(grid.axes, points_N, strict=True)]
    between = [bool(fraction_N.any()) for _, fraction_N in brackets]
    index_CN = np.zeros((2 ** sum(between), num_points), dtype=np.int64)
    weight_CN = np.ones((2 ** sum(between), num_points))
    inside_N = np.ones(num_points, dtype=np.bool_)
    stride, filled = grid.latency_s.size, 1
    for axis, point_N, (low_N, fraction_N), split in zip(grid.axes, points_N, brackets, between, strict=True):
        inside_N &= (point_N >= axis[0]) & (point_N <= axis[-1])
        stride //= len(axis)
        index_CN[:filled] += low_N * stride
        if split:
            np.add(index_CN[:filled], stride, out=index_CN[filled : 2 * filled])
            np.multiply(weight_CN[:filled], fraction_N, out=weight_CN[filled : 2 * filled])
            weight_CN[:filled] *= 1.0 - fraction_N
            filled *= 2
    missing_G = np.isnan(grid.latency_s).ravel()
    if missing_G.any():
        inside_N &= ~(missing_G[index_CN] & (weight_CN > 0)).any(axis=0)
    return Corners(index_CN.T, weight_CN.T, inside_N)


def _bracket(axis: Floats, point_N: Floats) -> tuple[Ints, Floats]:
    """The grid position below each point (clamped) and how far it lies towards the next, in [0, 1]."""
    clamped_N = np.clip(point_N, axis[0], axis[-1])
    low_N = np.searchsorted(axis, clamped_N, side="right") - 1
    low_N = np.minimum(low_N, max(len(axis) - 2, 0))
    if len(axis) == 1:
        return low_N, np.zeros(len(point_N))
    log_axis = coordinates(axis, axis)
    step = np.diff(log_axis)
    return low_N, (coordinates(axis, clamped_N) - log_axis[low_N]) / step[low_N]


def nearest_measured(axes: tuple[Floats, ...], latency_s: Floats) -> NDArray[np.int32]:
    """The flat index of the measured cell nearest to each cell (Euclid in the log axes), shape of the grid.

    At least one cell must be measured. Ties go to whichever the k-d tree meets first, the same one in every run.
    """
    nearest_G = np.arange(latency_s.size, dtype=np.int32)
    missing_G = np.isnan(latency_s).ravel()
    if missing_G.any():
        from scipy.spatial import cKDTree

        mesh = np.meshgrid(*(coordinates(axis, axis) for axis in axes), indexing="ij")
        place_Gd = np.stack([m.ravel() for m in mesh], axis=1) if mesh else np.zeros((1, 0))
        measured = np.flatnonzero(~missing_G)
        _, position = cKDTree(place_Gd[measured]).query(place_Gd[missing_G])
        nearest_G[missing_G] = measured[position]
    return nearest_G.reshape(latency_s.shape)
