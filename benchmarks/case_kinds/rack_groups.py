"""Stages x replicas on racks with free nodes: seconds of the busiest uplink."""

from pathlib import Path
from typing import Any

from case_kinds import CaseAnswer
from planner.solvers.topology.racks import place_on_racks
from planner.solvers.topology.racks_problem import Racks


def problem_of(case: dict[str, Any]) -> Racks:
    if len(case["gradient_bytes"]) != case["stages"]:
        raise ValueError(f"{len(case['gradient_bytes'])} gradients for {case['stages']} stages")
    return Racks(
        replicas=case["replicas"],
        free_B=tuple(case["free_nodes"]),
        uplink_bytes_per_s_B=tuple(case["uplink_bytes_per_s"]),
        gradient_bytes_S=tuple(case["gradient_bytes"]),
        activation_bytes_S=tuple(case["activation_bytes"]),
    )


def solve(case: dict[str, Any], directory: Path) -> CaseAnswer:
    result = place_on_racks(problem_of(case))
    assert result.solution is not None
    assert result.objective is not None
    rows = [list(row) for row in result.solution.rack_SD]
    return CaseAnswer({"rack": rows}, result.objective, result.bound, f"{result.status}")
