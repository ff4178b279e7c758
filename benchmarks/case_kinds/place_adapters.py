"""Adapters on engines (dLoRA): the engine that is done last, as soon as can be."""

from pathlib import Path
from typing import Any

from case_kinds import CaseAnswer
from planner.solvers.placement.adapters import Adapters, Engine, Request, place_adapters

TIME_LIMIT_S = 60.0


def problem_of(case: dict[str, Any]) -> Adapters:
    engines = tuple(Engine(each["adapters"], each["blocks"]) for each in case["engines"])
    requests = tuple(Request(r["adapter"], r["engine"], r["blocks"], r["exec_s"]) for r in case["requests"])
    return Adapters(case["adapters"], engines, requests, case["migration_s"], case["blocks_per_s"])


def solve(case: dict[str, Any], directory: Path) -> CaseAnswer:
    """Adapters and shares of requests, proven where the time limit leaves a proof."""
    result = place_adapters(problem_of(case), time_limit_s=TIME_LIMIT_S)
    if result.solution is None or result.objective is None:
        raise ValueError("no placement of adapters was found within the time limit")
    placement = result.solution
    answer = {
        "y": [[int(there) for there in row] for row in placement.hosts],
        "x": [list(row) for row in placement.shares],
    }
    return CaseAnswer(answer, result.objective, result.bound, f"{sum(map(sum, placement.hosts))} copies of adapters")
