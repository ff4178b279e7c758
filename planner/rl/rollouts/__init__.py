"""Rollouts: samples dispatched to workers, decoded, moved, cut off and resumed."""
