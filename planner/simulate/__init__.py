"""Simulates a serving fleet on requests, step by step: TTFT, TPOT and latency of each request, and where time went."""
