"""`planner rl` and its sub-commands."""
