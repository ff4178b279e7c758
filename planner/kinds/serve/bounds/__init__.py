"""Proven bounds on what serving plans can do in simulation, whatever their batches, chunks and waits."""
