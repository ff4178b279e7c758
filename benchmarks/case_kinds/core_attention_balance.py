"""Ranges of queries that leave busy servers: fewest bytes within a tolerance.

Cases name documents and bytes of a token; cases of DistCA's own data name batches and the model that attends to them,
and the tolerance in words, as the largest load over the average.
"""

import re
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


BYTES = 2  # of a value, in cases that name a model
QUERIES, KEYS = 2, 2  # a query and its output; a key and a value


def problem_of(case: dict[str, Any]) -> CoreAttention:
    """The case in either form."""
    rows = case["documents"] if "documents" in case else case["batches"]
    tokens = tuple(tuple(int(document) for document in row) for row in rows)
    if "model" not in case:
        sizes = float(case["query_bytes_per_token"]), float(case["kv_bytes_per_token"])
        return CoreAttention(tokens, *sizes, float(case["max_over_mean"]), int(case["block"]))
    model, objective = case["model"], case["benchmark"]["objective"]
    stated = re.search(r"max/avg\s*<=\s*(\d*\.?\d+)", objective)
    if stated is None:
        raise ValueError(f"the objective states no largest load as max/avg <= RATIO: {objective!r}")
    head_bytes = BYTES * model["hidden"] / model["heads"]
    sizes = QUERIES * model["heads"] * head_bytes, KEYS * model["kv_heads"] * head_bytes
    return CoreAttention(tokens, *sizes, float(stated[1]))


def solve(case: dict[str, Any], directory: Path) -> CaseAnswer:
    """The ranges that move."""
    result = move_ranges(problem_of(case))
    if result.solution is None or result.objective is None:
        raise ValueError("no ranges relieve every server")
    shards = [[each.home, each.document, each.first, each.last, each.server] for each in result.solution]
    return CaseAnswer({"shards": shards}, result.objective, result.bound, f"{len(shards)} ranges move")
