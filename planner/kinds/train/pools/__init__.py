"""Heterogeneous training: one job across several pools, as pipeline stages on each or as whole replicas."""
