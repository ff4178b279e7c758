"""A chosen mix as a plan: roles, placement, predictions, certificate."""
