"""Axes of grids over batches and tokens at which steps are priced."""

import numpy as np

from planner.arrays import Floats


def geometric_axis(largest: float, per_doubling: int = 2) -> Floats:
    """0, 1 and whole numbers growing by 2^(1 / per_doubling) up to `largest`, itself included."""
    if largest < 1:
        return np.zeros(1)
    steps = int(np.ceil(np.log2(largest) * per_doubling))
    values = np.round(2.0 ** (np.arange(steps) / per_doubling))
    return np.unique(np.concatenate([[0.0], values[values < largest], [float(largest)]]))
