"""Verbs that read what people run: scripts, manifests and recipes."""
