"""Optimizer steps beside Adam on the device: Muon's orthogonal updates, and updates computed by the host."""
