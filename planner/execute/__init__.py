"""Executor: builds the shards of a plan in PyTorch with random weights, runs and times them."""
