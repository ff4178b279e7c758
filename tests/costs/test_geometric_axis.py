"""Axes of grids: 0, both ends, and bounded steps between."""

import numpy as np
import pytest

from planner.costs.serving.axes import geometric_axis


@pytest.mark.parametrize(("largest", "per_doubling"), [(0, 2), (1, 2), (100, 1), (4096, 2), (5000, 4)])
def test_geometric_axes_hold_zero_their_end_and_bounded_steps(largest: float, per_doubling: int) -> None:
    axis = geometric_axis(largest, per_doubling)
    assert axis[0] == 0
    assert axis[-1] == largest
    assert np.array_equal(axis, np.round(axis))
    assert np.all(np.diff(axis) > 0)
    wide = axis[axis >= 16]
    assert np.all(wide[1:] / wide[:-1] <= 2 ** (1 / per_doubling) * 1.05)
