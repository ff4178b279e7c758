"""Model architectures as data: layers, exact parameter counts, and bytes of weights and KV cache."""
