"""One simulation from fleet and requests to results, statistics and files."""
