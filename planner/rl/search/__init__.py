"""Exact search for the best RL plan: lower bounds, best-first search, plans over time, agentic plans."""
