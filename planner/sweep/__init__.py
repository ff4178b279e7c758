"""What-if sweeps: a base problem, axes over its fields, one solved row a point, and gates on what changed."""
