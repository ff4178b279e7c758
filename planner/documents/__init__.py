"""Reading and writing of files: YAML and JSON with line numbers, atomic writes, quantities with units."""
