"""Goodput: the highest request rate within the SLO, by simulation, with upper bounds that prune."""
