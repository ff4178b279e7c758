"""Graphs and pipelines of stages: options under a chance of lateness, servers shared, batches on engines, queues."""
