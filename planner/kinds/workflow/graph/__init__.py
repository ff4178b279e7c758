"""Graphs of functions and served models, sized together."""
