"""What a shard should take, and whether the executed one did."""
