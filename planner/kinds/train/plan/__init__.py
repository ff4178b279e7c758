"""Turns the best training configuration into a plan: roles, placement, predictions, certificate."""
