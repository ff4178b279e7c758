"""Names for the arrays of numbers that annotations speak of; their shapes stand in the suffixes of variables."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Indices = NDArray[np.intp]
"""Positions as numpy returns them."""
