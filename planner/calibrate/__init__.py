"""Calibration: parameters of the cost model refitted to measured steps and to others' benchmark reports."""
