"""Rollouts (generation of samples): dispatch to workers, decoding, migration, truncation and resumption."""
