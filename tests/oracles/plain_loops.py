"""Closed loops of engines that add nothing to their steps."""

from dataclasses import fields

import numpy as np

from planner.estimate.closed_loop import ClosedLoops

PLAIN = {
    "clients": 1.0, "requests_per_client": 10.0, "isl": 1000.0, "osl": 101.0, "spread": 0.0, "osl_spread": 0.0,
    "disaggregated": 0.0,
    "decode_instances": 1.0, "decode_ranks": 1.0, "prefill_ranks": 1.0, "most_decoding": 256.0, "base_s": 0.01,
    "slope_s": 1e-4, "start_s": 2e-3, "token_s": 1e-5, "moved_s": 0.0, "step_tokens": 8192.0, "frontend_s": 0.0,
    "arrival_s": 0.0, "poll_steps": 1.0, "output_steps": 0.0, "hold_steps": 0.0, "prefill_first": 0.0,
    "staggered": 0.0, "least_s": 0.0, "rate_per_s": 0.0, "cache_tokens": np.inf, "graph_batch": np.inf, "eager_s": 0.0,
    "jitter": 0.0, "frontend_token_s": 0.0, "tokenises_together": 0.0, "prefill_members": 1.0,
    "whole_prompts": 0.0,
}  # fmt: skip


def plain_loop(**changes: float) -> ClosedLoops:
    """One loop, with changes."""
    assert set(changes) <= set(PLAIN) == {field.name for field in fields(ClosedLoops)}
    return ClosedLoops(**{name: np.array([float(value)]) for name, value in {**PLAIN, **changes}.items()})
