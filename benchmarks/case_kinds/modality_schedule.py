"""Passes of vision and language segments on the ranks of a pipeline: the shortest schedule within memory."""

from pathlib import Path
from typing import Any

from case_kinds import CaseAnswer
from planner.solvers.modalities.passes import PassProblem, best_schedule
from planner.solvers.modalities.segments import Key, MicroBatch, PartTimes, pass_problem

_SUB: dict[str, Any] = {"forward_ms": [1, 2], "backward_ms": [2, 3], "bytes": 1}
SMALL: dict[str, Any] = {
    "ranks": 2,
    "capacity_bytes": 3,
    "micro_batches": [{"vision": [_SUB], "language": [_SUB]}, {"vision": [_SUB], "language": [_SUB]}],
}


def problem_of(case: dict[str, Any]) -> tuple[PassProblem, list[Key]]:
    """The passes, and the key of each."""
    batches = [
        MicroBatch(_parts(case, batch["vision"]), _parts(case, batch["language"])) for batch in case["micro_batches"]
    ]
    return pass_problem(batches, (float(case["capacity_bytes"]),) * int(case["ranks"]))


def _parts(case: dict[str, Any], rows: list[dict[str, Any]]) -> tuple[PartTimes, ...]:
    """The parts of a segment, in milliseconds."""
    ranks = int(case["ranks"])
    return tuple(
        PartTimes(
            tuple(map(float, row["forward_ms"])), tuple(map(float, row["backward_ms"])), (float(row["bytes"]),) * ranks
        )
        for row in rows
    )


def solve(case: dict[str, Any], directory: Path) -> CaseAnswer:
    """Orders of all ranks."""
    problem, keys = problem_of(case)
    result = best_schedule(problem)
    assert result.solution is not None
    assert result.objective is not None
    orders = [
        [[key.micro_batch, key.segment, key.part, key.rank, key.backward] for key in (keys[at] for at in order)]
        for order in result.solution
    ]
    summary = f"{len(keys)} passes, {result.status}, {result.solver}"
    return CaseAnswer({"orders": orders}, result.objective, result.bound, summary)
