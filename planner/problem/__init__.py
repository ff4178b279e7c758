"""The problem that users write: schema, units, and names resolved in the catalogs."""
