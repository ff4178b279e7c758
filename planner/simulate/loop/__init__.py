"""The event loop of the simulator, compiled by numba; `planner.simulate.run.engine` runs it."""
