"""A running engine's own metrics, read and held against its plan; nothing is written to the engine."""
