"""Planning and placement optimizer for LLM training, serving and RL on GPU clusters."""

__version__ = "0.1.0"
