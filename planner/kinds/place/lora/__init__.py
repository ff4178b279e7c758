"""LoRA adapters on engines of one base model (dLoRA): which engine holds which, and runs merged with which."""
