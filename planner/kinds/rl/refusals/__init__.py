"""What RL problems ask for and cannot have."""

Refusal = tuple[bool, tuple[str | int, ...], str, str]
"""Whether it applies, the path of what is wrong in the problem, what is wrong, and what to do."""
