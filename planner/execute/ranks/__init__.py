"""The processes that execute a shard: launched, timed, recorded."""
