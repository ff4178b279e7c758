"""Serving in steady state: candidates priced by mean-field formulas of continuous batching; the best mix of them."""
