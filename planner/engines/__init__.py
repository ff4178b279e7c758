"""What engines of a version can run, as data with sources."""
