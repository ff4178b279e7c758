"""Serving plans as fleets, simulated on their own workload or on a trace."""
