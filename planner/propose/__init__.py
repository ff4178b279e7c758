"""Experiment design: which benchmark runs would settle a serving decision, and what their results settle."""
