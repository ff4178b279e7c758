"""Nodes of a cluster shared out to jobs, hour by hour: most worth of a day."""
