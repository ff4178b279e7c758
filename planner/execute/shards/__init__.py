"""What is executed: the shard of a role, its cases and schedules, and what can go wrong."""
