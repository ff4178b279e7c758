"""Stochastic models: queues, machine repair, checkpoint intervals, ranking and selection."""
