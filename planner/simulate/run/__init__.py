"""One simulation run: fleet and requests in; results, statistics and files out."""
