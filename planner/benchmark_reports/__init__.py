"""Reports of load generators as one record: a module a format, and a registry that tells them apart by content."""
