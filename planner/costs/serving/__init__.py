"""What surrounds the kernels of serving: memory, CUDA graphs, speculation, attention and feed-forward apart."""
