"""Placement of items with copies in the slots of bins: assignment, splitting, rescheduling, transportation."""
