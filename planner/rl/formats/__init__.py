"""File formats of RL problems and plans."""
