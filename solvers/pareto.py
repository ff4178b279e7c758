"""Pareto frontier (maximal vectors): the non-dominated points of a set.

Array suffixes: N points, K kept ones, A axes, P points of two figures.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from planner.arrays import Bools, Floats, Indices
from planner.errors import PlannerError

DUST = 1e-12  # of a figure; less is rounding
BLOCK = 512  # points compared with the kept ones at a time; bounds the memory of one comparison


def non_dominated(points_NA: ArrayLike, *, maximise: Sequence[bool]) -> Indices:
    """Indices, ascending, of the points that no other dominates: better on one axis and no worse on all.

    Of equal points the lowest index is kept. O(N log N) on two axes, O(N K) on more. Raises PlannerError when a point
    is not a number on every axis.
    """
    values_NA = np.asarray(points_NA, dtype=float).reshape(-1, len(maximise))
    if np.isnan(values_NA).any():
        raise PlannerError("a point of a Pareto set is not a number", where="pareto")
    values_NA = values_NA * np.where(np.asarray(maximise, dtype=bool), 1.0, -1.0)
    # Best first on the first axis, ties by the next, then by index: a point is dominated by an earlier one alone.
    order_N = np.lexsort((np.arange(len(values_NA)), *(-values_NA[:, ::-1].T)))
    sorted_NA = values_NA[order_N]
    kept_N = _sweep(sorted_NA[:, 1]) if len(maximise) == 2 else _by_blocks(sorted_NA)
    return np.sort(order_N[kept_N])


def _sweep(second_N: Floats) -> Bools:
    """With the first axis falling, a point stays when its second axis exceeds all before it."""
    before_N = np.concatenate([[-np.inf], np.maximum.accumulate(second_N)[:-1]])
    kept_N = second_N > before_N
    kept_N[:1] = True  # -inf does not exceed -inf, and the first point is never dominated
    return kept_N


def _by_blocks(sorted_NA: Floats) -> Bools:
    kept_KA = np.empty((0, sorted_NA.shape[1]))
    kept_N = np.zeros(len(sorted_NA), dtype=bool)
    for start in range(0, len(sorted_NA), BLOCK):
        block = sorted_NA[start : start + BLOCK]
        alive = np.flatnonzero(~_covered(kept_KA, block).any(axis=0))
        block = block[alive]
        among = np.triu(_covered(block, block), k=1)  # by an earlier point of the block; covering is transitive
        stays = ~among.any(axis=0)
        kept_N[start + alive[stays]] = True
        kept_KA = np.concatenate([kept_KA, block[stays]])
    return kept_N


def _covered(by_KA: Floats, points_NA: Floats) -> Bools:
    """[by, point] whether the first is no worse than the second on every axis."""
    covered = np.ones((len(by_KA), len(points_NA)), dtype=bool)
    for axis in range(points_NA.shape[1]):
        covered &= by_KA[:, axis][:, None] >= points_NA[:, axis][None, :]
    return covered


def efficient(size_P: Floats, time_P: Floats) -> Indices:
    """Indices of the points of finite time that no other is at least as small and as fast as, smallest first."""
    order_P: Indices = np.lexsort((time_P, size_P))
    order_P = order_P[np.isfinite(time_P[order_P])]
    fastest_P = np.minimum.accumulate(time_P[order_P])
    falls_P = np.append(True, fastest_P[1:] < fastest_P[:-1] * (1.0 - DUST))
    return np.asarray(order_P[falls_P[: len(order_P)]])
