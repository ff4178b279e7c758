"""Verbs that ask what would be: estimates, simulations, sweeps, faults."""
