"""Generated cases on caches of prefixes: a tree of documents, and a trace of conversations for blocks and tiers."""

import numpy as np

from samples.tables import Case, case_draws
from samples.traces import BLOCK_TOKENS, SPAN_S, conversations

TRACE = "sample_conversation.jsonl.gz"
BLOCK_BYTES = BLOCK_TOKENS * 131_072


def files() -> dict[str, bytes]:
    """What the cases name beside themselves."""
    return {TRACE: conversations()}


def _documents() -> Case:
    draws, documents = case_draws(7), 40
    requests = np.minimum(draws.geometric(0.08, (240, 2)) - 1, documents - 1).tolist()
    return {
        **{"doc_tokens": draws.integers(200, 1500, documents).tolist(), "train_requests": requests[:120]},
        **{"test_requests": requests[120:], "gpu_tokens": 4000, "host_tokens": 16000, "kv_bytes_per_token": 131072},
        **{"host_bytes_per_s": 2e10, "prefill_s_per_token": 1.1e-4, "prefill_s_per_token2": 8e-9},
    }


def _blocks(max_over_mean: float) -> Case:
    sizes = {"instances": 4, "slots_per_instance": 60, "plan_window_s": SPAN_S / 2.0}
    return {"trace": TRACE, **sizes, "max_over_mean": max_over_mean}


def _hot() -> Case:
    return _blocks(1.3)


def _pool() -> Case:
    return _blocks(1.05)


def _tiers() -> Case:
    def tier(name: str, unit_blocks: int, usd_per_gb_h: float, bytes_per_s: float) -> Case:
        rates = {"bytes_per_s": bytes_per_s, "bytes_per_s_per_request": bytes_per_s / 2.0}
        return {"name": name, "unit_blocks": unit_blocks, "max_units": 8, "usd_per_gb_h": usd_per_gb_h, **rates}

    return {
        **{"trace": TRACE, "span_s": SPAN_S, "window_s": 60, "block_bytes": BLOCK_BYTES, "instance_usd_per_h": 16.0},
        **{"block_compute_s": 0.06, "block_compute_s_per_position": 2.4e-4},
        "tiers": [tier("hbm", 32, 0.03, 2e12), tier("dram", 128, 0.005, 4e10), tier("ssd", 1024, 2e-4, 5e9)],
    }


MADE = {  # beginning of the name and kind
    ("cache_tree", "cache_tree"): _documents,
    ("cache_hot", "cache_hot"): _hot,
    ("cache_pool", "cache_pool"): _pool,
    ("cache_tiers", "cache_tiers"): _tiers,
}
