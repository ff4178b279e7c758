"""Long training runs on machines that fail: effective time, checkpoints, spares, and what is left after a loss."""
