"""One self-contained page of a plan, a sweep or a check: decision, limits, what else, proof and sources."""
