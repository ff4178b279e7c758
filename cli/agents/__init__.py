"""Planner for agents: its functions as tools of the Model Context Protocol."""
