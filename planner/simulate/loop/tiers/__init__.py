"""Memory tiers of prefixes that all instances share: what they have, give and evict."""
