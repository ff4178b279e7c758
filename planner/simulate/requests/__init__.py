"""Request streams as arrays: arrival processes, length distributions, traces and their statistics."""
