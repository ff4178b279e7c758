"""Pins of hot blocks, chosen on the first window of a trace and judged on the next one."""

from pathlib import Path
from typing import Any

import numpy as np

from case_kinds import CaseAnswer, block_requests
from planner.solvers.caches.block_requests import BlockRequests
from planner.solvers.caches.hot_blocks import Homes, choose_pins, hit_bound, served


def homes_of(case: dict[str, Any], requests: BlockRequests) -> Homes:
    """Instances, and homes by the hash that the scorer defines."""
    count = case["instances"]
    home_B = [(block * 2654435761 % 2**32) * count >> 32 for block in requests.names if isinstance(block, int)]
    return Homes(np.array(home_B, dtype=np.int64), np.full(count, case["slots_per_instance"]))


def solve(case: dict[str, Any], directory: Path) -> CaseAnswer:
    """The pins; objective and bound are hit rates of the window that was not looked at."""
    window_s, requests = case["plan_window_s"], block_requests(case, directory)
    both = requests.between(0.0, 2.0 * window_s)
    homes = homes_of(case, requests)
    result = choose_pins(requests.between(0.0, window_s), homes, case["max_over_mean"])
    assert result.solution is not None
    judged = served(both, homes, result.solution, window_s)
    replicas = {str(requests.names[block]): at.tolist() for block, at in result.solution.items()}
    summary = f"{len(replicas)} pins; next window: load {judged.max_over_mean:.4f} over the mean"
    return CaseAnswer({"replicas": replicas}, judged.hit_rate, hit_bound(both, homes, window_s), summary)
