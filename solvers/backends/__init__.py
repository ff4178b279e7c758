"""The only importers of solver packages."""
