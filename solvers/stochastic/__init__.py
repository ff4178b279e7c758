"""Chance: queues, failures and repairs, checkpoints, measurements under uncertainty."""
