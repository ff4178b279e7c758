"""The problem that users write: schema, units, names resolved against the catalogs."""
