"""Inner loops compiled by numba; imported inside functions, since numba takes a while to load."""
