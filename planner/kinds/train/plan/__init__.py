"""An evaluated choice as a plan: roles, placement, predictions, certificate."""
