"""Elastic sequence parallelism (LoongServe) in the simulator: a program apart from the main event loop."""
