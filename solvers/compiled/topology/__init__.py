"""Inner loops of `solvers/topology`."""
