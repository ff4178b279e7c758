"""Loops of rollouts, compiled by numba on first use and kept on disk."""
