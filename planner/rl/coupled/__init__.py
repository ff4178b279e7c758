"""Generators and trainer of an asynchronous plan simulated together: the referee of its price."""
