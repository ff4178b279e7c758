"""Rollouts as engines are simulated: what a plan takes on them, and searches on curves scaled to that."""
