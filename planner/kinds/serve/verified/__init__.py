"""Serving plans that steady state proposes and simulation verifies."""
