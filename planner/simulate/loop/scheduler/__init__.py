"""Scheduler of an engine: continuous batching, chunked prefill, admission, preemption."""
