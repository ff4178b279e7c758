"""Instances that share one cache, join for a prefill and part for decoding: a program apart from the other loop."""
