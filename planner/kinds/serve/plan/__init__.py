"""Turns a chosen instance mix into a plan: roles, placement, predictions, certificate."""
