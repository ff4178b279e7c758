"""Inner loops of rollout simulation, compiled by numba on first use and cached on disk."""
