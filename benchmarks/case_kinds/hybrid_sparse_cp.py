"""Heads of unlike sparsity on head ranks times sequence ranks (DSV)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from case_kinds import CaseAnswer
from planner.solvers.contexts.sparse_heads import HeadLayout, place_heads

SMALL: dict[str, Any] = {
    "gpus": 2,
    "sequence": 1000,
    "head_dim": 8,
    "sparsity": [0.5, 0.7, 0.9, 0.4, 0.1],
    "hardware": {
        "gpus_per_node": 2,
        "intra_bytes_per_s": 1e9,
        "inter_bytes_per_s": 1e8,
        "flops_per_s": 1e9,
        "memory_bytes": 1e9,
        "gather_overhead_s": 0.1,
    },
}


def layouts_of(case: dict[str, Any]) -> Iterator[tuple[HeadLayout, dict[str, Any]]]:
    """Every size of groups and both ways to lay them over nodes, and the answer's words for it."""
    N, S, D, hw = case["gpus"], case["sequence"], case["head_dim"], case["hardware"]
    dense_H = 1.0 - np.array(case["sparsity"], float)
    for head_ranks in (size for size in range(1, min(N, len(dense_H)) + 1) if N % size == 0):
        sequence_ranks = N // head_ranks
        for inner in ("head", "sequence"):
            size = {"head": head_ranks, "sequence": sequence_ranks}
            rate = {
                axis: hw["intra_bytes_per_s" if (size[axis] if axis == inner else N) <= hw["gpus_per_node"] else
                         "inter_bytes_per_s"]
                for axis in size
            }  # fmt: skip
            moved = 4.0 * (S / sequence_ranks) * D * 2.0
            gathered_H = 2.0 * dense_H * (sequence_ranks - 1) / sequence_ranks * S * D * 2.0
            compute_H = dense_H * 4.0 * S * S * D / sequence_ranks / hw["flops_per_s"]
            seconds_H = compute_H + moved * (head_ranks - 1) / head_ranks / rate["head"] + gathered_H / rate["sequence"]
            own_s = float(hw["gather_overhead_s"]) if sequence_ranks > 1 else 0.0
            words = {"head_ranks": head_ranks, "sequence_ranks": sequence_ranks, "inner": inner}
            yield HeadLayout(f"{head_ranks}x{sequence_ranks}", head_ranks, seconds_H, moved + gathered_H, own_s), words


def solve(case: dict[str, Any], directory: Path) -> CaseAnswer:
    """The layout, and the heads of each head rank."""
    rows = list(layouts_of(case))
    result = place_heads([layout for layout, _ in rows], float(case["hardware"]["memory_bytes"]))
    if result.solution is None or result.objective is None:
        raise ValueError("the heads fit no layout")
    layout, words = rows[result.solution.layout]
    heads: list[list[int]] = [[] for _ in range(layout.groups)]
    for head, group in enumerate(result.solution.group_of_head):
        heads[group].append(head)
    summary = f"{words['head_ranks']} head x {words['sequence_ranks']} sequence ranks, {result.status}"
    return CaseAnswer({**words, "heads": heads}, result.objective, result.bound, summary)
