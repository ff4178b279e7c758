"""A knowledge tree kept on GPU and host for requests that are not known yet, and the proven best for those that are."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from case_kinds import CaseAnswer
from planner.arrays import Bools
from planner.solvers.caches.knowledge_tree import KnowledgeTree, best_kept, counted_uses, expected_uses

GAP = 1e-4  # of the saved seconds of an estimate, whose error is far larger
PROOF_S = 60.0


def tree_of(case: dict[str, Any], uses: Mapping[tuple[int, ...], float]) -> KnowledgeTree:
    """The paths and their seconds as the case states them; parents come before children in `uses`."""
    sizes = case["doc_tokens"]
    number = {path: v for v, path in enumerate(uses)}
    own_V = np.array([sizes[path[-1]] for path in uses], dtype=np.float64)
    before_V = np.array([sum(sizes[document] for document in path[:-1]) for path in uses], dtype=np.float64)
    return KnowledgeTree(
        np.array([number.get(path[:-1], -1) for path in uses]),
        np.array(list(uses.values())),
        case["prefill_s_per_token"] * own_V + case["prefill_s_per_token2"] * own_V * (before_V + own_V / 2.0),
        own_V * case["kv_bytes_per_token"] / case["host_bytes_per_s"],
        own_V,
        case["gpu_tokens"],
        case["host_tokens"],
    )


def solve(case: dict[str, Any], directory: Path) -> CaseAnswer:
    """What is kept for further requests; objective and bound are the mean seconds of those that were planned on."""
    requests = case["train_requests"]
    known = best_kept(tree_of(case, counted_uses(requests)), time_limit_s=PROOF_S)
    uses = dict(sorted(expected_uses(requests, len(case["doc_tokens"])).items(), key=lambda row: len(row[0])))
    expected = best_kept(tree_of(case, uses), gap=GAP, time_limit_s=PROOF_S)
    assert expected.solution is not None
    assert known.objective is not None
    assert known.bound is not None
    answer = {"gpu": _paths(uses, expected.solution.gpu_V), "host": _paths(uses, expected.solution.host_V)}
    count = len(requests)
    summary = f"planned on: {known.status.value}; {len(answer['gpu'])} on GPU, {len(answer['host'])} on host"
    return CaseAnswer(answer, known.objective / count, known.bound / count, summary)


def _paths(uses: Mapping[tuple[int, ...], float], kept_V: Bools) -> list[str]:
    return [",".join(map(str, path)) for path, kept in zip(uses, kept_V, strict=True) if kept]
