"""Turns the best plan of an RL search into a plan: roles, placement, phases, certificate."""
