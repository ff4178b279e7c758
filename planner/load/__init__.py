"""Loads problems and plans from files: parse, override, validate, resolve names in the catalogs."""
