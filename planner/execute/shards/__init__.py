"""What the executor runs: the shard of each rank, its steps and pipeline schedules, and possible faults."""
