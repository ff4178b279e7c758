"""Verbs around measurements: profiles, calibration, traces."""
