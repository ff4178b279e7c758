"""One module a format: what its documents say, in the fields of `planner.importing.records`."""
