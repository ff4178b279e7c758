"""Verbs that list catalogs: `planner hardware`, `planner models`, and `planner doctor` on this installation."""
