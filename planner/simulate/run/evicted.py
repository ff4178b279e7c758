"""What memory tiers know of prefix blocks to evict them by: who uses each, and what it takes to compute it."""

from itertools import pairwise
from typing import Any

import numpy as np

from planner.arrays import Floats, Ints
from planner.simulate.fleet.instances import Fleet
from planner.simulate.loop import fields as f
from planner.simulate.requests.stream import Requests


def tier_arrays(fleet: Fleet, requests: Requests | None) -> dict[str, Any]:
    """The arrays of `RunState` that tiers evict by; small ones where they evict what is least recent."""
    if not fleet.tiers or fleet.eviction == "lru":
        requests = None
    blocks = 1 if requests is None else len(requests.prefix_tokens)
    tiers = len(fleet.tiers) if requests is not None else 1
    block = np.zeros((blocks, f.TIER_FIELDS), dtype=np.int64)
    block[:, f.ABOVE] = f.NONE
    cost, use_of, use = np.zeros(blocks), np.zeros(blocks + 1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    if requests is not None:
        before = _first_places(requests, block)
        order = np.argsort(requests.prefix, kind="stable")
        use = np.repeat(np.arange(len(requests)), np.diff(requests.prefix_of))[order]
        use_of[1:] = np.cumsum(np.bincount(requests.prefix, minlength=blocks))
        block[:, f.NEXT_USE] = use_of[:-1]
        cost = block_costs(fleet, requests.prefix_tokens, before)
    return {
        "tier_block": block,
        "tier_heap": np.zeros((tiers, blocks), dtype=np.int64),
        "behind": np.zeros((tiers, blocks), dtype=np.int64),
        "block_worth": np.zeros(blocks),
        "block_cost": cost,
        "use_of": use_of,
        "use": use,
    }


def _first_places(requests: Requests, block: Ints) -> Ints:
    """Tokens before each prefix block; notes how many blocks are."""
    before = np.zeros(len(block), dtype=np.int64)
    for first, last in pairwise(requests.prefix_of.tolist()):
        own = requests.prefix[first:last]
        ends = np.cumsum(requests.prefix_tokens[own])
        before[own] = ends - requests.prefix_tokens[own]
        block[own, f.DEPTH] = np.arange(len(own))
    return before


def block_costs(fleet: Fleet, tokens_U: Ints, before_U: Ints) -> Floats:
    """Seconds to prefill each block behind those before it, alone in a step, over the KV blocks that it fills. [U]"""
    grid = next(instance.grid for instance in fleet.instances if instance.role != "decode")
    cases, case_U = np.unique(np.stack([tokens_U, before_U]), axis=1, return_inverse=True)
    seconds = [grid.prefill_s(tokens, before + (tokens + 1) / 2.0) for tokens, before in cases.T.tolist()]
    return np.asarray(np.array(seconds)[case_U.ravel()] / np.maximum(tokens_U // fleet.block_tokens, 1))
