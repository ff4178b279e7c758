"""The processes (ranks) that execute shards: launch, communication, timing, records."""
