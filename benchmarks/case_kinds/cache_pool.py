"""Blocks of a trace on a pool of instances, with copies and even loads: the most hits, with a bound."""

from pathlib import Path
from typing import Any

import numpy as np

from case_kinds import CaseAnswer, block_requests
from planner.solvers.caches.block_copies import PoolProblem, most_hits, pool_loads


def solve(case: dict[str, Any], directory: Path) -> CaseAnswer:
    """The placement; objective and bound are hits in the window that is planned."""
    window = block_requests(case, directory).between(0.0, case["plan_window_s"])
    slots_N = np.full(case["instances"], case["slots_per_instance"])
    result = most_hits(PoolProblem(window, slots_N, case["max_over_mean"] - 1.0))
    assert result.solution is not None
    assert result.objective is not None
    load_N, _ = pool_loads(window, result.solution, len(slots_N))
    placement = {
        str(window.names[block]): {str(i): share for i, share in zip(c.at.tolist(), c.share.tolist(), strict=True)}
        for block, c in result.solution.items()
    }
    summary = f"{len(placement)} blocks, load {float(load_N.max() / load_N.mean()):.4f} over the mean"
    return CaseAnswer({"placement": placement}, result.objective, result.bound, summary)
