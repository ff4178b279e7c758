"""Decisions over a whole training run: variable sequence lengths, batch ramp-up, checkpoints."""
