"""Prefix caches: hit curves, tiers, copies of blocks, pins beside queues of recent blocks, and knowledge trees."""
