"""The kernels of one step of one shard: forward, backward, recomputation, optimizer, with sizes as arrays."""
