"""The event loop: compiled by numba as one program, which `planner.simulate.run.engine` runs."""
