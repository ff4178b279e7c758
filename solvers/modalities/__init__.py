"""Training on unlike samples of several modalities: GPUs of modules, orders of micro-batches, passes of a pipeline."""
