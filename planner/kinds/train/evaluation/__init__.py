"""Evaluates one training plan: layers on stages, pipeline simulated, memory of each rank."""
