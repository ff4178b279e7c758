"""Distinct rows of degrees, found by one number each: arrays of them have millions of rows."""

import numpy as np

from planner.arrays import Ints


def distinct(*columns: Ints) -> tuple[Ints, Ints]:
    """The distinct combinations [columns, K] of columns [N] of whole numbers from 0 on, in order, and the place of each
    of the N among them [N]."""
    rows = np.stack(columns)
    if not rows.shape[1]:
        return rows, np.zeros(0, np.int64)
    keys_N = np.ravel_multi_index(tuple(rows), tuple(rows.max(axis=1) + 1))
    _, first_K, place_N = np.unique(keys_N, return_index=True, return_inverse=True)
    return rows[:, first_K], place_N
