"""A day of a cluster split between jobs: most US dollars, with start-ups, misses of load and targets."""

from pathlib import Path
from typing import Any

import numpy as np

from case_kinds import CaseAnswer
from planner.arrays import Floats
from planner.solvers.schedules.days.solve import split_day
from planner.solvers.schedules.days.split import DayJob, DaySplit, Goal, of_one_pool

TIME_LIMIT_S = 4.0  # of the integer program, which comes last


def problem_of(case: dict[str, Any]) -> DaySplit:
    jobs = zip(case["jobs"], case["start"], strict=True)
    return DaySplit((case["nodes"],), tuple(_job(job, before, case["hours"]) for job, before in jobs))


def _job(job: dict[str, Any], before: int, hours: int) -> DayJob:
    """Speeds are less by the start-up of nodes that arrive; serving earns up to its load, other jobs by progress."""
    counts = tuple(sorted(job["allowed"]))
    states = of_one_pool(counts)
    first_A, speed_AA = _speeds(job, [before], counts)[0], _speeds(job, counts, counts)
    if job["type"] == "serving":
        load_T = job["load"]
        rows = [_earned(job, speed_AA, load) for load in load_T[1:hours]]
        return DayJob(states, _earned(job, first_A, load_T[0]), np.array(rows).reshape(-1, len(counts), len(counts)))
    nothing, later = np.zeros(len(counts)), np.zeros((hours - 1, len(counts), len(counts)))
    if "target" in job:
        goal = Goal(job["target"], job["usd_per_unit"], job.get("usd_per_missing", 0.0))
        return DayJob(states, nothing, later, goal, first_A, speed_AA)
    usd = job["usd_per_unit"]
    return DayJob(states, usd * first_A, later + usd * speed_AA)


def _speeds(job: dict[str, Any], before: "list[int] | tuple[int, ...]", counts: tuple[int, ...]) -> Floats:
    rows = np.array([[max(n - m, 0) for n in counts] for m in before], dtype=np.float64)
    share = rows / np.maximum(counts, 1) if job["by_node"] else (rows > 0.0).astype(np.float64)
    return np.asarray(np.array([job["speed"][n] for n in counts]) * (1.0 - job["startup_h"] * share))


def _earned(job: dict[str, Any], speed: Floats, load: float) -> Floats:
    missed = np.maximum(load - speed, 0.0)
    return np.asarray(job["usd_per_unit"] * np.minimum(speed, load) - job["usd_per_miss"] * missed)


def solve(case: dict[str, Any], directory: Path) -> CaseAnswer:
    """Nodes of every job in every hour, proven where the time limit leaves a proof."""
    problem = problem_of(case)
    result = split_day(problem, time_limit_s=TIME_LIMIT_S)
    assert result.solution is not None
    assert result.objective is not None
    rows = [[nodes for (nodes,) in row] for row in problem.nodes_of(result.solution)]
    return CaseAnswer({"nodes": rows}, result.objective, result.bound, f"{result.status}, {problem.hours} hours")
