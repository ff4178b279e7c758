"""Serving costs around the kernels: memory, CUDA graphs, speculative decoding, attention-FFN disaggregation."""
