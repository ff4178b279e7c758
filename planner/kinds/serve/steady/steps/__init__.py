"""What steps take in steady state, and what a request meets in them: formulas over arrays of points."""
