"""What memory tiers of a fleet evict, by policy, against lists of blocks written from the definitions.

Prompts that share nothing come between and fill the device: so its own cache never has a block, and all hits are those
of tiers. Requests come one after another.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from planner.simulate.fleet.instances import Fleet, Instance, MemoryTier
from planner.simulate.fleet.step_grid import StepGrid
from planner.simulate.requests.stream import Requests
from planner.simulate.run.engine import simulate

BLOCK, DEVICE = 4, 8  # tokens of a block, blocks on the device
BASE_S, TOKEN_S, PAIR_S = 2.0**-3, 2.0**-10, 2.0**-13  # exact sums: equal worth is equal
GRID = StepGrid.affine(BASE_S, token_s=TOKEN_S, pair_s=PAIR_S, most_sequences=4)
ENGINE = Instance(GRID, DEVICE * BLOCK, most_sequences=4, token_budget=DEVICE * BLOCK)


def prompts_of(seed: int) -> list[list[tuple[int, ...]]]:
    """Names of the blocks of prompts, each the whole prompt up to its end; every other one shares nothing."""
    rng, prompts = np.random.default_rng(seed), []
    for number in range(40):
        letters = rng.integers(0, 2, rng.integers(2, DEVICE)).tolist()
        prompts.append([tuple(letters[: end + 1]) for end in range(len(letters))])
        prompts.append([(99, number, end) for end in range(DEVICE)])
    return prompts


def sizes_of(seed: int) -> list[int]:
    """Blocks of two tiers."""
    return [int(size) for size in np.random.default_rng(seed + 1000).integers(3, 30, 2)]


class Lists:
    """Tiers as lists of blocks, from the definitions."""

    def __init__(self, policy: str, sizes: list[int], prompts: list[list[tuple[int, ...]]]) -> None:
        self.policy, self.sizes, self.prompts = policy, sizes, prompts
        self.held: list[list[tuple[int, ...]]] = [[] for _ in sizes]
        self.clock = [0.0 for _ in sizes]
        self.priority: dict[tuple[int, ...], float] = {}
        self.served = 0
        self.sets = [set(prompt) for prompt in prompts]
        self.depth = {block: depth for prompt in prompts for depth, block in enumerate(prompt)}
        self.above = {block: before for prompt in prompts for before, block in pairwise(prompt)}
        self.order: dict[tuple[int, ...], int] = {}  # blocks are numbered as they come
        for prompt in prompts:
            for block in prompt:
                self.order.setdefault(block, -len(self.order))

    def hits(self) -> list[int]:
        """By prompt, its leading blocks that some tier has when it comes."""
        counts = []
        for prompt in self.prompts:
            held = {block for tier in self.held for block in tier}
            counts.append(next((n for n, block in enumerate(prompt) if block not in held), len(prompt)))
            self.served += 1
            self.held = [[block for block in tier if block not in prompt] for tier in self.held]
            for block in reversed(prompt):
                self.enter(0, block)
            for tier, size in enumerate(self.sizes):
                while len(self.held[tier]) > size:
                    gone = self.leaves(tier)
                    self.held[tier].remove(gone)
                    if tier + 1 < len(self.sizes):
                        self.enter(tier + 1, gone)
        return counts

    def enter(self, tier: int, block: tuple[int, ...]) -> None:
        self.held[tier].append(block)
        uses = sum(block in prompt for prompt in self.sets[: self.served])
        attended = BLOCK * self.depth[block] + (BLOCK + 1) / 2
        self.priority[block] = self.clock[tier] + uses * (BASE_S + BLOCK * (TOKEN_S + PAIR_S * attended))

    def next_use(self, block: tuple[int, ...]) -> int:
        following = (n for n in range(self.served, len(self.sets)) if block in self.sets[n])
        return next(following, len(self.sets))

    def leaves(self, tier: int) -> tuple[int, ...]:
        """What a tier evicts; of equal ones the deepest, then the one that came first."""
        held = self.held[tier]
        if self.policy == "lru":
            return held[0]
        if self.policy == "farthest":
            return max(held, key=lambda block: (self.next_use(block), self.depth[block], self.order[block]))
        behind = {self.above.get(block) for block in held}
        leaves = [block for block in held if block not in behind]
        leaf = min(leaves, key=lambda block: (self.priority[block], -self.depth[block], -self.order[block]))
        self.clock[tier] = self.priority[leaf]
        return leaf


def simulated(policy: str, sizes: list[int], prompts: list[list[tuple[int, ...]]]) -> list[int]:
    """Blocks of each prompt that tiers spare, and nothing else."""
    count, lengths = len(prompts), np.array([BLOCK * len(prompt) + 1 for prompt in prompts])
    requests = Requests.open_stream(100.0 * np.arange(count), lengths, np.ones(count, dtype=np.int64))
    requests = requests.with_prefixes(prompts, block_tokens=BLOCK)
    engine = replace(ENGINE, kv_tokens=(DEVICE + 1) * BLOCK, token_budget=(DEVICE + 1) * BLOCK)
    tiers = tuple(MemoryTier(size * BLOCK) for size in sizes)
    fleet = Fleet((engine,), block_tokens=BLOCK, prefix_caching=True, tiers=tiers, eviction=policy)
    return [int(tokens) // BLOCK for tokens in simulate(fleet, requests).cached_tokens]


@pytest.mark.parametrize("policy", ["lru", "pgdsf", "farthest"])
def test_tiers_give_the_blocks_that_lists_give_on_20_traces(policy: str) -> None:
    for seed in range(20):
        prompts, sizes = prompts_of(seed), sizes_of(seed)
        assert simulated(policy, sizes, prompts) == Lists(policy, sizes, prompts).hits()


def test_no_policy_has_more_hits_than_the_farthest_next_use() -> None:
    for seed in range(20):
        prompts, sizes = prompts_of(seed), [sum(sizes_of(seed))]
        most = sum(simulated("farthest", sizes, prompts))
        assert all(sum(simulated(policy, sizes, prompts)) <= most for policy in ("lru", "pgdsf"))
