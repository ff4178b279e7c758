"""`planner rl` and its sub-commands: resource planning for RL post-training."""
