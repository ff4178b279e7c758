"""Speech answered with speech: pools that encode, prefill, decode and vocode."""
