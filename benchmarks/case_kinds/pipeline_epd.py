"""Encode, prefill and decode instances for requests with images (EPD): the highest rate."""

from pathlib import Path
from typing import Any

import numpy as np
from case_streams import stream

from case_kinds import CaseAnswer
from planner.solvers.workflow.encode_pools import EncodePools, ImageLimits, ImageRequests, highest_rate


def solve(case: dict[str, Any], directory: Path) -> CaseAnswer:
    """The split with the highest rate; requests a second."""
    problem = EncodePools(
        lambda rate: _requests(case, rate),
        tuple(case["rates_per_s"]),
        case["gpus"],
        tuple(range(1, case["max_slots"] + 1)),
        case["encode_base_s"],
        case["encode_s_per_image"],
        case["decode_base_s"],
        case["decode_s_per_slot"],
        ImageLimits(case["ttft_s"], case["tpot_s"], case["attainment"]),
    )
    result = highest_rate(problem)
    if result.solution is None or result.objective is None:
        raise ValueError(f"no split keeps the limits at {case['rates_per_s'][0]:g} requests/s")
    split = result.solution
    plan = {
        "mode": "epd" if split.encode else "pd",
        "encode": split.encode,
        "prefill": split.prefill,
        "decode": split.decode,
        "slots": split.slots,
        "split_images": split.parallel_images,
    }
    return CaseAnswer({"plan": plan}, result.objective, result.bound, f"{plan['mode']}; {result.status}")


def _requests(case: dict[str, Any], rate_per_s: float) -> ImageRequests:
    arrival_s_R, lengths = stream(case, rate_per_s)
    images_R = lengths["images"].astype(np.int64)
    tokens_R = lengths["text_tokens"] + images_R * case["image_tokens"]
    prefill_s_R = case["prefill_base_s"] + case["prefill_s_per_token"] * tokens_R
    return ImageRequests(
        arrival_s_R,
        images_R,
        prefill_s_R + case["prefill_s_per_token2"] * tokens_R**2,
        images_R * case["image_tokens"] * case["feature_bytes_per_token"] / case["link_bytes_per_s"],
        tokens_R * case["kv_bytes_per_token"] / case["link_bytes_per_s"],
        lengths["output_tokens"],
    )
