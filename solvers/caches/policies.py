"""Which blocks of prompts hit in one cache, by what it evicts: least recent, least worth (PGDSF), farthest next use.

A cache of so many blocks takes all blocks of a prompt once it has been served, and evicts until they fit; a prompt hits
as far as its blocks are held. PGDSF is RAGCache's (arXiv:2404.12457, section 5.2): the priority of a block is a clock
plus its uses times its cost over its size, a leaf of least priority is evicted, and the clock is what it had.
No policy hits more than the farthest next use (Belady 1966): a block is never used again before those that come before
it in its prompts, so that what it keeps is closed under prefixes.
R request, A access, B block.
"""

import heapq
import itertools

import numpy as np

from planner.arrays import Bools, Floats, Ints
from planner.errors import PlannerError
from planner.solvers.caches.block_requests import BlockRequests
from planner.solvers.caches.stack_distances import NEVER, stack_distances

POLICIES = ("lru", "pgdsf", "farthest")
NONE = -1


def hits_of(requests: BlockRequests, policy: str, size: int, cost_s_A: Floats | None = None) -> Bools:
    """Which accesses hit in a cache of `size` blocks; `cost_s_A` is what each saves, for PGDSF (alike if absent)."""
    if size < 0:
        raise PlannerError(f"a cache of {size} blocks", where="size", hint="give 0 or more")
    if policy == "lru":
        distance_A = stack_distances(requests)
        return np.asarray((distance_A != NEVER) & (distance_A < size))
    if policy == "farthest":
        return _farthest(requests, size)
    if policy == "pgdsf":
        return _pgdsf(requests, size, np.ones(len(requests.block_A)) if cost_s_A is None else cost_s_A)
    raise PlannerError(f"unknown policy `{policy}`", where="policy", hint=f"one of {', '.join(POLICIES)}")


def _next_use(requests: BlockRequests) -> Ints:
    """By access, the request that uses its block next; one beyond the last for none."""
    following = np.full(requests.num_blocks, len(requests))
    next_A = np.empty(len(requests.block_A), np.int64)
    for r in range(len(requests) - 1, -1, -1):
        accesses = slice(requests.first_R[r], requests.first_R[r + 1])
        next_A[accesses] = following[requests.block_A[accesses]]
        following[requests.block_A[accesses]] = r
    return next_A


def _farthest(requests: BlockRequests, size: int) -> Bools:
    next_A, position_A = _next_use(requests).tolist(), requests.position_A.tolist()
    block_A, first_R = requests.block_A.tolist(), requests.first_R.tolist()
    used_next: dict[int, int] = {}  # of cached blocks
    heap: list[tuple[int, int, int]] = []  # -next use, -position: of blocks used next together the last one goes first
    hit_A = np.zeros(len(block_A), np.bool_)
    for first, last in itertools.pairwise(first_R):
        for a in range(first, last):
            if block_A[a] not in used_next:
                break
            hit_A[a] = True
        for a in range(first, last):
            used_next[block_A[a]] = next_A[a]
            heapq.heappush(heap, (-next_A[a], -position_A[a], block_A[a]))
        while len(used_next) > size:
            after, _, block = heapq.heappop(heap)
            if used_next.get(block) == -after:
                del used_next[block]
    return hit_A


def _pgdsf(requests: BlockRequests, size: int, cost_s_A: Floats) -> Bools:
    block_A, first_R, cost_A = requests.block_A.tolist(), requests.first_R.tolist(), cost_s_A.tolist()
    uses, above = [0] * requests.num_blocks, [NONE] * requests.num_blocks
    below: dict[int, int] = {}  # of cached blocks, how many cached ones follow directly
    priority: dict[int, float] = {}  # of cached blocks
    heap: list[tuple[float, int]] = []  # of leaves
    clock = 0.0
    hit_A = np.zeros(len(block_A), np.bool_)
    for first, last in itertools.pairwise(first_R):
        for a in range(first, last):
            if block_A[a] not in priority:
                break
            hit_A[a] = True
        for a in range(first, last):
            block = block_A[a]
            uses[block] += 1
            if block not in priority:
                above[block], below[block] = (block_A[a - 1] if a > first else NONE), 0
                if above[block] != NONE:
                    below[above[block]] += 1
            priority[block] = clock + uses[block] * cost_A[a]
            heapq.heappush(heap, (priority[block], block))
        while len(priority) > size:
            worth, block = heapq.heappop(heap)
            if priority.get(block) != worth or below[block]:
                continue
            clock = worth
            del priority[block], below[block]
            if above[block] != NONE:
                below[above[block]] -= 1
                heapq.heappush(heap, (priority[above[block]], above[block]))
    return hit_A
