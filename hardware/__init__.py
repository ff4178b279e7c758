"""What a cluster is, and what it was measured to do."""
