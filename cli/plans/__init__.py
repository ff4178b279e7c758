"""Verbs that make, read, judge and launch plans."""
