"""Moves between placements: fewest bytes to one that keeps its load limit, in an order that always has room."""

from pathlib import Path
from typing import Any

from case_kinds import CaseAnswer
from planner.solvers.placement.moves import Moves, least_moves

TIME_LIMIT_S = 60.0


def solve(case: dict[str, Any], directory: Path) -> CaseAnswer:
    """The moves, proven where the time limit leaves a proof; gigabytes."""
    problem = Moves(
        memory_D=tuple(gpu["memory_gb"] for gpu in case["gpus"]),
        size_M=tuple(model["memory_gb"] for model in case["models"]),
        load_M=tuple(model["load"] for model in case["models"]),
        start=tuple((model["gpu"],) for model in case["models"]),
        apart=tuple((a, b) for a, b in case["apart"]),
        most_load=case["max_load"],
    )
    result = least_moves(problem, time_limit_s=TIME_LIMIT_S)
    if result.solution is None or result.objective is None:
        raise ValueError(f"no moves lead to a load of at most {case['max_load']:g}: {result.status}")
    moves = [[step.model, step.to] for step in result.solution.steps]
    return CaseAnswer({"moves": moves}, result.objective, result.bound, f"{len(moves)} moves")
