"""Verifies the proof of a serving plan: its optimisation model rebuilt, its rates and memory priced again."""
