"""Prefixes that prompts of a trace share: what caches of every size hit, and what memory for them is worth."""
