"""Emits plans as launch scripts and configuration files: one module a target, registered by its `TARGETS`."""
