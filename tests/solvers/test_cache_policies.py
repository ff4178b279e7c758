"""Policies of one cache against lists written from their definitions, block by block."""

import itertools

import numpy as np
import pytest
from block_traces import of, random_trace

from planner.errors import PlannerError
from planner.solvers.caches.policies import POLICIES, hits_of

Block = tuple[int, ...]


def slow_hits(prompts: list[list[Block]], policy: str, size: int, cost: dict[Block, float]) -> list[bool]:
    """Evicts one block at a time, found by looking at all of them."""
    cached: dict[Block, float] = {}  # with the priority that it has
    recent: list[Block] = []
    uses: dict[Block, int] = {}
    clock, hits = 0.0, []
    for r, prompt in enumerate(prompts):
        held = list(itertools.takewhile(lambda block: block in cached, prompt))
        hits += [block in held for block in prompt]
        for block in prompt:
            uses[block] = uses.get(block, 0) + 1
            cached[block] = clock + uses[block] * cost[block]
        for block in reversed(prompt):
            recent = [block, *(other for other in recent if other != block)]
        while len(cached) > size:
            if policy == "lru":
                gone = next(block for block in reversed(recent) if block in cached)
            elif policy == "pgdsf":
                leaves = [b for b in cached if not any(len(o) == len(b) + 1 and o[:-1] == b for o in cached)]
                gone = min(leaves, key=lambda block: cached[block])
                clock = cached[gone]
            else:
                later = {
                    b: next((s for s in range(r + 1, len(prompts)) if b in prompts[s]), len(prompts)) for b in cached
                }
                gone = max(cached, key=lambda block: (later[block], len(block)))
            del cached[gone]
    return hits


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(20))
def test_hits_are_those_of_lists_block_by_block(seed: int, policy: str) -> None:
    prompts = random_trace(seed, requests=30)
    requests = of(prompts)
    draws = np.random.default_rng(seed)
    cost = {name: float(draws.uniform(0.5, 2.0)) for name in requests.names}
    cost_s_A = np.array([cost[block] for prompt in prompts for block in prompt])
    for size in (0, 1, 3, 7, 200):
        assert hits_of(requests, policy, size, cost_s_A).tolist() == slow_hits(prompts, policy, size, cost)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(20))
def test_no_policy_hits_more_than_the_farthest_next_use(seed: int) -> None:
    requests = of(random_trace(100 + seed, requests=60))
    for size in (1, 2, 4, 8):
        most = int(hits_of(requests, "farthest", size).sum())
        assert all(int(hits_of(requests, policy, size).sum()) <= most for policy in POLICIES)


def test_what_is_kept_by_farthest_next_use_is_the_best_of_all_choices() -> None:
    for seed in range(12):
        prompts = random_trace(seed, requests=5, branches=1, depth=2)
        best = _best(prompts, frozenset(), 2)
        assert int(hits_of(of(prompts), "farthest", 2).sum()) == best


def _best(prompts: list[list[Block]], cached: frozenset[Block], size: int) -> int:
    """The most hits of all ways to choose what is kept after each prompt."""
    if not prompts:
        return 0
    hits = len(list(itertools.takewhile(lambda block: block in cached, prompts[0])))
    within = cached | set(prompts[0])
    kept = itertools.combinations(sorted(within), min(size, len(within)))
    return hits + max(_best(prompts[1:], frozenset(each), size) for each in kept)


def test_unknown_policies_and_sizes_below_none_are_refused() -> None:
    requests = of(random_trace(1))
    with pytest.raises(PlannerError, match="unknown policy `fifo`"):
        hits_of(requests, "fifo", 3)
    with pytest.raises(PlannerError, match="a cache of -1 blocks"):
        hits_of(requests, "lru", -1)
