"""Predicted cost of a shard, and its comparison with the executed one."""
