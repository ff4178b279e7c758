"""Operators (kernels) of one step on one shard: forward, backward, recomputation, optimizer, with sizes as arrays."""
