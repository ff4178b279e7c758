"""The best RL plan: bounds, best-first search, horizons, agents."""
