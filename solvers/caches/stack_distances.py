"""Hits of least-recently-used caches of every size in one pass: distinct blocks used since a block's last use.

Source  Mattson et al., "Evaluation techniques for storage hierarchies", IBM Systems Journal 9(2), 1970, section 4
        (stack algorithms), with a Fenwick tree over the times of last uses (Bennett and Kruskal 1975): O(A log A).
The blocks of a prompt are touched last to first, so that a block is never more recent than those before it: what a
cache holds is closed under prefixes, and a block hits exactly where its distance is below the size.
R request, A access, B block, C size in blocks.
"""

import numpy as np

from planner.arrays import Ints
from planner.solvers.caches.block_requests import BlockRequests

NEVER = -1  # the distance of a block that was not used before


def stack_distances(requests: BlockRequests) -> Ints:
    """By access, how many distinct blocks were used since the block's last use, as its request comes. [A]"""
    from planner.solvers.compiled.block_caches import distances

    return np.asarray(distances(requests.first_R, requests.block_A, requests.num_blocks))


def hit_curve(distance_A: Ints) -> Ints:
    """Accesses that hit in a cache of 0, 1, 2, ... blocks, to the least size at which all do that ever can. [C]"""
    known = distance_A[distance_A != NEVER]
    return np.concatenate([[0], np.cumsum(np.bincount(known))]).astype(np.int64)
