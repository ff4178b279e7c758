"""Circuits between pods for the phases of a round (RFabric): seconds of a round, switching included."""

from pathlib import Path
from typing import Any

from case_kinds import CaseAnswer
from planner.solvers.topology.circuits import Circuits, circuits


def problem_of(case: dict[str, Any]) -> Circuits:
    return Circuits(
        pods=case["pods"],
        ports=case["ports"],
        link_bytes_per_s=case["link_bytes_per_s"],
        switching_s=case["switching_s"],
        phases=tuple({(i, j): float(size) for i, j, size in phase["demand"]} for phase in case["phases"]),
    )


def solve(case: dict[str, Any], directory: Path) -> CaseAnswer:
    result = circuits(problem_of(case))
    if result.solution is None or result.objective is None:
        raise ValueError(f"a pod exchanges with more pods in one phase than its {case['ports']} ports")
    rows = [[[i, j, count] for (i, j), count in sorted(links.items())] for links in result.solution.links]
    return CaseAnswer(
        {"circuits": rows}, result.objective, result.bound, f"{result.solution.changes} changes, {result.status}"
    )
