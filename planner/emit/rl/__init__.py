"""Launch files of RL frameworks."""
