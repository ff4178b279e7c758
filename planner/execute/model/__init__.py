"""A shard of a model in PyTorch: layers, attention, experts, pipeline stages, collectives."""
