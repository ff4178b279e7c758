"""Ranges of queries that leave busy servers: fewest bytes within a tolerance."""

from pathlib import Path
from typing import Any

from case_kinds import CaseAnswer
from planner.solvers.contexts.core_attention import CoreAttention, move_ranges

SMALL: dict[str, Any] = {
    "servers": 3,
    "block": 1,
    "max_over_mean": 1.1,
    "query_bytes_per_token": 4.0,
    "kv_bytes_per_token": 1.0,
    "documents": [[90, 30], [20, 20], [30]],
}


def solve(case: dict[str, Any], directory: Path) -> CaseAnswer:
    """The ranges that move."""
    problem = CoreAttention(
        tuple(tuple(int(tokens) for tokens in row) for row in case["documents"]),
        float(case["query_bytes_per_token"]),
        float(case["kv_bytes_per_token"]),
        float(case["max_over_mean"]),
        int(case["block"]),
    )
    result = move_ranges(problem)
    if result.solution is None or result.objective is None:
        raise ValueError("no ranges relieve every server")
    shards = [[each.home, each.document, each.first, each.last, each.server] for each in result.solution]
    return CaseAnswer({"shards": shards}, result.objective, result.bound, f"{len(shards)} ranges move")
