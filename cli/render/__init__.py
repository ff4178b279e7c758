"""Text rendering of plans, diffs, simulations, sweeps and explanations for the terminal."""
