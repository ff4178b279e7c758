"""Passes of vision and language segments on the ranks of a pipeline: the shortest schedule within memory."""

from pathlib import Path
from typing import Any

from case_kinds import CaseAnswer
from planner.solvers.modalities.passes import Pass, PassProblem, best_schedule

_SUB: dict[str, Any] = {"forward_ms": [1, 2], "backward_ms": [2, 3], "bytes": 1}
SMALL: dict[str, Any] = {
    "ranks": 2,
    "capacity_bytes": 3,
    "micro_batches": [{"vision": [_SUB], "language": [_SUB]}, {"vision": [_SUB], "language": [_SUB]}],
}

Key = tuple[int, int, int, int, int]
"""Micro-batch, segment (0 vision, 1 language), sub-micro-batch, rank, direction."""


def problem_of(case: dict[str, Any]) -> tuple[PassProblem, list[Key]]:
    """The passes, and the name of each; to begin with, micro-batches one after the other."""
    ranks, batches = int(case["ranks"]), case["micro_batches"]
    subs = [
        (b, g, u, sub)
        for b, batch in enumerate(batches)
        for g, segment in enumerate(("vision", "language"))
        for u, sub in enumerate(batch[segment])
    ]
    keys: list[Key] = [(b, g, u, r, d) for b, g, u, _ in subs for d in (0, 1) for r in range(ranks)]
    index = {key: at for at, key in enumerate(keys)}
    passes = []
    for group, (b, g, u, sub) in enumerate(subs):
        for d, seconds in enumerate((sub["forward_ms"], sub["backward_ms"])):
            for r in range(ranks):
                before = tuple(index[key] for key in _before((b, g, u, r, d), batches[b], ranks))
                partner = index[b, g, u, r, 1] if d == 0 else None
                held = float(sub["bytes"]) if d == 0 else 0.0
                passes.append(Pass(r, float(seconds[r]), before, partner, held, 2 * group + d))
    orders = tuple(
        tuple(
            index[b, g, u, r, d]
            for b, batch in enumerate(batches)
            for d in (0, 1)
            for g in ((0, 1) if d == 0 else (1, 0))
            for u in range(len(batch[("vision", "language")[g]]))
        )
        for r in range(ranks)
    )
    return PassProblem(tuple(passes), (float(case["capacity_bytes"]),) * ranks, orders), keys


def _before(key: Key, batch: dict[str, Any], ranks: int) -> list[Key]:
    """What a pass waits for, as the case states."""
    b, g, u, r, d = key
    if d == 0 and r > 0:
        return [(b, g, u, r - 1, 0)]
    if d == 0:
        return [] if g == 0 else [(b, 0, v, ranks - 1, 0) for v in range(len(batch["vision"]))]
    if r < ranks - 1:
        return [(b, g, u, r + 1, 1), (b, g, u, r, 0)]
    if g == 1:
        return [(b, g, u, r, 0)]
    return [(b, 1, v, 0, 1) for v in range(len(batch["language"]))] + [(b, g, u, r, 0)]


def solve(case: dict[str, Any], directory: Path) -> CaseAnswer:
    """Orders of all ranks."""
    problem, keys = problem_of(case)
    result = best_schedule(problem)
    assert result.solution is not None
    assert result.objective is not None
    orders = [[list(keys[at]) for at in order] for order in result.solution]
    summary = f"{len(keys)} passes, {result.status}, {result.solver}"
    return CaseAnswer({"orders": orders}, result.objective, result.bound, summary)
