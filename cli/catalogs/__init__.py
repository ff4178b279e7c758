"""Verbs that show what is known: hardware, models, this installation."""
