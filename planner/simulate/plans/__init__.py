"""Simulates serving plans: a plan as a fleet, on its own workload or on a trace."""
