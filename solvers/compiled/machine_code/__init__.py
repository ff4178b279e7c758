"""Machine code of loops kept on disk and called without numba."""
