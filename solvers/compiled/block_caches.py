"""Caches of prefix blocks (numba): stack distances, and pins beside queues of recent blocks. R request, A access."""

import numpy as np
from numba import njit

from planner.solvers.compilation.kept import kept


@kept
@njit
def distances(first_R, block_A, num_blocks):
    """Distinct blocks used since each block was, -1 for none; blocks of a request are touched last to first."""
    touches = len(block_A)
    tree = np.zeros(touches + 1, np.int64)  # Fenwick tree over touches: 1 at the last one of each block
    last = np.full(num_blocks, -1)
    out = np.empty(touches, np.int64)
    clock, seen = 0, 0
    for r in range(len(first_R) - 1):
        for a in range(first_R[r], first_R[r + 1]):
            at = last[block_A[a]]
            if at < 0:
                out[a] = -1
                continue
            older, i = 0, at + 1
            while i > 0:
                older += tree[i]
                i -= i & -i
            out[a] = seen - older
        for a in range(first_R[r + 1] - 1, first_R[r] - 1, -1):
            block = block_A[a]
            if last[block] >= 0:
                i = last[block] + 1
                while i <= touches:
                    tree[i] -= 1
                    i += i & -i
            else:
                seen += 1
            last[block] = clock
            i = clock + 1
            while i <= touches:
                tree[i] += 1
                i += i & -i
            clock += 1
    return out


@kept
@njit
def pinned_hits(first_R, block_A, home_B, pinned_B, room_N):
    """Which accesses hit: pinned blocks always, others where their home still has them, and none after one that misses.

    A home keeps its most recent blocks, as many as it has room for; blocks of a request are touched last to first.
    """
    blocks, homes = len(home_B), len(room_N)
    newer, older = np.full(blocks, -1), np.full(blocks, -1)  # neighbours in the queue of the home
    newest, oldest, held = np.full(homes, -1), np.full(homes, -1), np.zeros(homes, np.int64)
    cached = np.zeros(blocks, np.bool_)
    hit = np.zeros(len(block_A), np.bool_)
    for r in range(len(first_R) - 1):
        for a in range(first_R[r], first_R[r + 1]):
            block = block_A[a]
            if not (pinned_B[block] or cached[block]):
                break
            hit[a] = True
        for a in range(first_R[r + 1] - 1, first_R[r] - 1, -1):
            block = block_A[a]
            if pinned_B[block]:
                continue
            home = home_B[block]
            if cached[block]:
                if newest[home] == block:
                    continue
                before, after = older[block], newer[block]
                newer_of = after
                if before >= 0:
                    newer[before] = newer_of
                else:
                    oldest[home] = newer_of
                older[newer_of] = before
            else:
                cached[block] = True
                held[home] += 1
            older[block], newer[block] = newest[home], -1
            if newest[home] >= 0:
                newer[newest[home]] = block
            else:
                oldest[home] = block
            newest[home] = block
            if held[home] > room_N[home]:
                gone = oldest[home]
                oldest[home] = newer[gone]
                if oldest[home] >= 0:
                    older[oldest[home]] = -1
                else:
                    newest[home] = -1
                cached[gone] = False
                held[home] -= 1
    return hit
