"""Emits training plans for Megatron-LM, Megatron-Bridge, DeepSpeed, torchtitan, torchrun and Slurm."""
