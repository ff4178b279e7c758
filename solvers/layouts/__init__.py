"""Items with copies in the slots of bins: where the copies stand, and what part of the weight each carries."""
