"""Scheduling problems: pipelines, flow shops, uniform machines, batching, multi-period choice."""
