"""Sequences of unlike lengths on aligned blocks of ranks: degree and block of each."""

from pathlib import Path
from typing import Any

import numpy as np

from case_kinds import CaseAnswer
from planner.solvers.contexts.degrees import DegreeProblem, best_degrees

SMALL: dict[str, Any] = {
    "ranks": 2,
    "tokens_per_rank": 100,
    "tokens": [150, 90, 40],
    "seconds": {"1": {"a": 0.1, "b": 0.01, "c": 0.0}, "2": {"a": 0.2, "b": 0.006, "c": 0.0}},
}


def problem_of(case: dict[str, Any]) -> DegreeProblem:
    """Seconds by the case's a + b tokens + c tokens^2; a degree holds so many tokens a rank."""
    tokens_N = np.array(case["tokens"], float)
    degrees = tuple(sorted(int(degree) for degree in case["seconds"]))
    columns = []
    for degree in degrees:
        form = case["seconds"][str(degree)]
        seconds_N = form["a"] + form["b"] * tokens_N + form["c"] * tokens_N * tokens_N
        columns.append(np.where(tokens_N <= degree * case["tokens_per_rank"], seconds_N, np.inf))
    return DegreeProblem(degrees, np.stack(columns, axis=1), int(case["ranks"]))


def solve(case: dict[str, Any], directory: Path) -> CaseAnswer:
    """Degrees and blocks."""
    result = best_degrees(problem_of(case))
    assert result.solution is not None
    assert result.objective is not None
    answer = {"sequences": [list(choice) for choice in result.solution]}
    return CaseAnswer(answer, result.objective, result.bound, f"{result.status}, {result.solver}")
