"""Networks beside the language model that is trained: towers in front of it, generators behind it."""
