"""Units of each memory tier for the prefixes of a trace: the least USD per hour, proven."""

from pathlib import Path
from typing import Any

import numpy as np

from case_kinds import CaseAnswer, block_requests
from planner.solvers.caches.block_requests import BlockRequests
from planner.solvers.caches.stack_distances import stack_distances
from planner.solvers.caches.tiers import Tier, TierProblem, cheapest_tiers

SLACK = 1e-6  # of a bandwidth, as the scorer allows


def problem_of(case: dict[str, Any], requests: BlockRequests) -> TierProblem:
    """The tiers as the case states them, in USD for the span of the trace."""
    window_R = ((requests.time_s_R - requests.time_s_R[0]) // case["window_s"]).astype(np.int64)
    compute_s_A = case["block_compute_s"] + case["block_compute_s_per_position"] * requests.position_A
    block_bytes, span_h = case["block_bytes"], case["span_s"] / 3600.0
    tiers = tuple(
        Tier(
            tier["name"],
            tier["unit_blocks"],
            tier["max_units"],
            block_bytes / 1e9 * tier["usd_per_gb_h"] * span_h,
            block_bytes / tier["bytes_per_s_per_request"],
            tier["bytes_per_s"] * (1.0 + SLACK) * case["window_s"] / block_bytes,
        )
        for tier in case["tiers"]
    )
    price_per_s = case["instance_usd_per_h"] / 3600.0
    return TierProblem(stack_distances(requests), compute_s_A, window_R[requests.request_A], tiers, price_per_s)


def solve(case: dict[str, Any], directory: Path) -> CaseAnswer:
    """The cheapest units, proven."""
    problem = problem_of(case, block_requests(case, directory))
    result = cheapest_tiers(problem)
    assert result.solution is not None
    assert result.objective is not None
    assert result.bound is not None
    units = {tier.name: count for tier, count in zip(problem.tiers, result.solution, strict=True)}
    per_h = 3600.0 / case["span_s"]
    summary = ", ".join(f"{count} {name}" for name, count in units.items())
    return CaseAnswer({"units": units}, result.objective * per_h, result.bound * per_h, summary)
