"""One training job across several pools: stages of a pipeline on each of them, or whole replicas."""
