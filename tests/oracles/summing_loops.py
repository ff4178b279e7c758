"""Loops for numba: one whose code needs nothing but itself, one that makes an array."""

import numpy as np

from planner.arrays import Floats, Ints


def running_sums(values: Ints, scale: float, sums: Floats) -> None:
    """Fills `sums` with the sums of all values up to each, times `scale`."""
    total = 0.0
    for place in range(len(values)):
        total += values[place]
        sums[place] = total * scale


def running_sums_by_array(values: Ints, scale: float, sums: Floats) -> None:
    """The same by an array of its own."""
    total = np.zeros(1)
    for place in range(len(values)):
        total[0] += values[place]
        sums[place] = total[0] * scale
