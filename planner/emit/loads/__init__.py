"""Load that measures a plan: what is sent to its engines, and the command lines of generators that send it."""
