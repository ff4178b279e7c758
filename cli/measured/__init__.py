"""Verbs around measurements: kernel profiles, calibration of the cost model, request traces."""
