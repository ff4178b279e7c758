"""Type aliases of numpy arrays for annotations; their shapes are said by suffixes of variable names."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Indices = NDArray[np.intp]
"""Positions as numpy returns them."""
