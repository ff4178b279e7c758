"""Adapters to solver packages (OR-Tools, PuLP), which are imported nowhere else."""
