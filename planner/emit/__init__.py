"""Plans as files that start them: one module a target, each registering itself by defining `TARGETS`."""
