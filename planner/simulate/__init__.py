"""Discrete-event simulator of LLM serving with continuous batching: requests in, TTFT, TPOT and latency out."""
