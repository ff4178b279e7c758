"""Other plans for the same problem: fixed by hand in parts, the best few that are distinct, and why one is not best."""
