"""Training on failing machines: effective time (goodput), checkpoints, spares, elastic and shrunken plans."""
