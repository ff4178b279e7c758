"""From what people run to what it decides: launch scripts, manifests and recipes read, and nothing of them run."""
