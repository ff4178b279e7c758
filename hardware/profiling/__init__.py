"""Measures kernels on the device at hand and writes them as a store of kernel tables."""
