"""Serving in steady state: candidates priced by mean-field formulas, the mix that is chosen from them."""
