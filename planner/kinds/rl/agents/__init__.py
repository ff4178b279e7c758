"""Agents: trajectories of several turns on replicas that share queues or have their own, and who starts where."""
