"""Emits training plans for Megatron-LM, Megatron-Bridge, DeepSpeed, torchtitan, NeMo AutoModel, torchrun and Slurm."""
