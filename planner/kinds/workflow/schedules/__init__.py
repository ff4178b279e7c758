"""Graphs that run once: stages split over functions on servers, and primitives of queries in batches on engines."""
