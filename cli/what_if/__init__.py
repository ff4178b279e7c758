"""What-if verbs: `planner estimate`, `simulate`, `sweep` and `faults`."""
