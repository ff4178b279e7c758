"""Small seeded traces of prefix blocks, and caches of them written from their definitions."""

import numpy as np

from planner.arrays import Ints
from planner.solvers.caches.block_requests import BlockRequests


def random_trace(seed: int, *, requests: int = 40, branches: int = 3, depth: int = 4) -> list[list[tuple[int, ...]]]:
    """Prompts as the blocks of paths of a tree; a block is named by the whole path up to its end."""
    draws = np.random.default_rng(seed)
    prompts = []
    for _ in range(requests):
        path = tuple(int(min(draws.geometric(0.5) - 1, branches)) for _ in range(int(draws.integers(1, depth + 1))))
        prompts.append([path[: end + 1] for end in range(len(path))])
    return prompts


def of(prompts: list[list[tuple[int, ...]]], step_s: float = 1.0) -> BlockRequests:
    """The prompts, one every `step_s`."""
    return BlockRequests.of([step_s * r for r in range(len(prompts))], prompts)


def recent_hits(
    prompts: list[list[tuple[int, ...]]],
    homes: dict[tuple[int, ...], int],
    rooms: list[int],
    pins: frozenset[tuple[int, ...]] = frozenset(),
) -> list[bool]:
    """Which blocks hit in lists of recent blocks, one a home: pinned ones always, none after one that misses."""
    lists: list[list[tuple[int, ...]]] = [[] for _ in rooms]
    hits = []
    for prompt in prompts:
        alive = True
        for block in prompt:
            alive = alive and (block in pins or block in lists[homes[block]])
            hits.append(alive)
        for block in reversed(prompt):
            if block not in pins:
                recent = lists[homes[block]]
                if block in recent:
                    recent.remove(block)
                recent.insert(0, block)
                del recent[rooms[homes[block]] :]
    return hits


def homes_of(requests: BlockRequests, count: int, seed: int) -> tuple[Ints, dict[tuple[int, ...], int]]:
    """Random homes, by number of a block and by its name."""
    home_B = np.random.default_rng(seed).integers(0, count, requests.num_blocks)
    return home_B, {name: int(home) for name, home in zip(requests.names, home_B, strict=True)}  # type: ignore[misc]
