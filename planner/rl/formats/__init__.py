"""RL problems and plans as documents."""
