"""Text at the edge of the program: YAML and JSON with positions, files written whole, quantities with units."""
