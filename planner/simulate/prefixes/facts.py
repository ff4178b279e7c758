"""What prompts of a trace share: reuse, blocks that many ask for, working sets, and hits by size of a cache."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from planner.arrays import Ints
from planner.solvers.caches.block_requests import BlockRequests
from planner.solvers.caches.policies import hits_of
from planner.solvers.caches.stack_distances import NEVER, hit_curve, stack_distances

HEAVY = 0.01  # of all requests: blocks that so many ask for, or more
WINDOWS_S = (60.0, 600.0)
SIZES = 12  # of the curve that is told
MOST_HEAVY = 5  # told by name


def facts(requests: BlockRequests, policies: Sequence[str]) -> dict[str, Any]:
    """All of it, in blocks; shares are of accesses."""
    accesses, distance_A = len(requests.block_A), stack_distances(requests)
    asked_B = requests.accesses_B()
    order = np.argsort(-asked_B, kind="stable")
    heavy = order[asked_B[order] >= max(HEAVY * len(requests), 2.0)]
    return {
        "requests": len(requests),
        "accesses": accesses,
        "distinct_blocks": requests.num_blocks,
        "reused_share": float((distance_A != NEVER).sum()) / accesses,
        "heavy_blocks": {
            "count": len(heavy),
            "share_of_accesses": float(asked_B[heavy].sum()) / accesses,
            "largest": [
                {"block": str(requests.names[block]), "share_of_requests": float(asked_B[block]) / len(requests)}
                for block in heavy[:MOST_HEAVY].tolist()
            ],
        },
        "working_sets": [_working_set(requests, window_s) for window_s in WINDOWS_S],
        "hits_by_size": list(_curve(requests, distance_A, policies)),
    }


def _working_set(requests: BlockRequests, window_s: float) -> dict[str, float]:
    """Distinct blocks asked for in each window that the trace fills."""
    window_A = ((requests.time_s_R - requests.time_s_R[0]) // window_s).astype(np.int64)[requests.request_A]
    pairs = np.unique(window_A * requests.num_blocks + requests.block_A)
    sizes = np.bincount(pairs // requests.num_blocks)
    return {"window_s": window_s, "mean_blocks": float(sizes.mean()), "most_blocks": float(sizes.max())}


def _curve(requests: BlockRequests, distance_A: Ints, policies: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Shares that hit, at sizes that double down from the least one at which everything hits that ever can."""
    curve_C = hit_curve(distance_A)
    most = len(curve_C) - 1
    accesses = len(requests.block_A)
    for size in sorted({most >> halved for halved in range(SIZES)} - {0}):
        others = {name: float(hits_of(requests, name, size).sum()) / accesses for name in policies if name != "lru"}
        yield {"blocks": size, "lru": float(curve_C[size]) / accesses, **others}
