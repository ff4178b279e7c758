"""Memory for prefixes bought beside GPUs: the least cost of both, proven by formulas and judged in simulation."""
