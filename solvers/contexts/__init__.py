"""Training on long contexts: ranges of attention, heads and sequences on ranks."""
