"""Operators to seconds: roofline, measured kernel tables, collectives, calibration, and the evidence of each."""
