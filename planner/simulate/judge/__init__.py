"""Limits judged by simulation: stationary parts of runs, estimates with intervals, verdicts."""
