"""The executor: a plan's shards built with random weights and run."""
