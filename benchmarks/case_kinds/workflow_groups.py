"""Functions and groups of a graph's stages on servers (Ditto)."""

from pathlib import Path
from typing import Any

from case_kinds import CaseAnswer
from planner.solvers.workflow.server_groups import EVERY, GraphStage, Nearness, ServerGroups, Work, group_stages

TIME_LIMIT_S = 120.0


def solve(case: dict[str, Any], directory: Path) -> CaseAnswer:
    """Functions by stage and groups by server; milliseconds as the case has them."""
    order = case["order"]
    place = {name: number for number, name in enumerate(order)}
    stages = tuple(_stage(case, case["stages"][name], place) for name in order)
    result = group_stages(
        ServerGroups(stages, tuple(case["server_slots"]), case["max_group"]), time_limit_s=TIME_LIMIT_S
    )
    if result.solution is None or result.objective is None:
        raise ValueError(f"no functions within the time limit: {result.status}")
    answer = {
        "dop": dict(zip(order, result.solution.functions_S, strict=True)),
        "groups": [[order[s] for s in group] for group in result.solution.groups],
        "servers": list(result.solution.server_G),
    }
    return CaseAnswer(answer, result.objective, result.bound, f"{len(result.solution.groups)} groups; {result.status}")


def _stage(case: dict[str, Any], stage: dict[str, Any], place: dict[str, int]) -> GraphStage:
    return GraphStage(
        tuple(place[parent] for parent in stage["from_"]),
        {near: _work(case, stage, near) for near in EVERY},
        splits=not stage["single"],
    )


def _work(case: dict[str, Any], stage: dict[str, Any], near: Nearness) -> Work:
    """Milliseconds: shared memory is `shm_ratio` times as fast; a stage of one function has its measured time."""
    reads, writes = near
    split_ms = whole_ms = 0.0
    for name, (a, b) in stage["components_ab"].items():
        shared = (name.startswith("read") and reads) or (name == "write" and writes)
        split_ms += a / (case["shm_ratio"] if shared else 1)
        whole_ms += b / (case["shm_ratio"] if shared else 1)
    if not stage["single"]:
        return Work(split_ms, whole_ms)
    return Work(0.0, stage["single_ms"] if not (reads or writes) else split_ms + whole_ms)
