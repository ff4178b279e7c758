"""Inner loops of `modalities` and `contexts`."""
