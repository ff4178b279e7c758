"""Pools of encode, prefill, decode and vocode for speech."""

from pathlib import Path
from typing import Any

import numpy as np
from case_streams import stream

from case_kinds import CaseAnswer
from planner.solvers.workflow.speech_pools import (
    DecodePool,
    RequestPool,
    Speech,
    SpeechPools,
    VocodePool,
    cheapest_pools,
    heard,
)

NAMES = ("encoder", "prefill", "decode", "vocoder")


def solve(case: dict[str, Any], directory: Path) -> CaseAnswer:
    """The cheapest pools; US dollars an hour."""
    arrival_s_R, lengths = stream(case)
    options = case["options"]
    prompt_R = lengths["audio_s"] * case["tokens_per_audio_s"] + case["prompt_tokens"]
    problem = SpeechPools(
        arrival_s_R,
        lengths["reply_tokens"].astype(np.int64),
        tuple(
            RequestPool(o["usd_per_h"], o["base_s"] + o["per_audio_s"] * lengths["audio_s"]) for o in options["encoder"]
        ),
        tuple(RequestPool(o["usd_per_h"], o["base_s"] + o["per_token_s"] * prompt_R) for o in options["prefill"]),
        tuple(DecodePool(o["usd_per_h"], o["slots"], o["step_s"]) for o in options["decode"]),
        tuple(VocodePool(o["usd_per_h"], o["base_s"], o["per_token_s"]) for o in options["vocoder"]),
        tuple(tuple(range(1, case["max_replicas"][name] + 1)) for name in NAMES),
        Speech(
            case["first_audio_s"],
            case["quantile"],
            case["late_share"],
            tuple(case["first_chunks"]),
            case["chunk_tokens"],
            case["vocoder_context_tokens"],
            case["tokens_per_audio_s"],
            case["jitter_s"],
        ),
    )
    result = cheapest_pools(problem)
    if result.solution is None or result.objective is None:
        raise ValueError(f"no pools keep the limits: {result.status}")
    plan: dict[str, Any] = {"first_chunk": result.solution.first_chunk}
    for name, (option, replicas) in zip(NAMES, result.solution.pools, strict=True):
        plan[name] = {"option": option, "replicas": replicas}
    reached = heard(problem, result.solution)
    summary = f"first audio {reached.first_audio_s:.3f} s, {reached.late_share:.2%} of later chunks late"
    return CaseAnswer({"plan": plan}, result.objective, result.bound, summary)
