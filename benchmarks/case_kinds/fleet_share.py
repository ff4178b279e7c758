"""Opportunistic jobs on GPUs of production jobs (TGS): most weight times speed, no production job losing too much."""

from pathlib import Path
from typing import Any

import numpy as np

from case_kinds import CaseAnswer
from planner.solvers.placement.opportunistic import Sharing, share_gpus

TIME_LIMIT_S = 60.0


def problem_of(case: dict[str, Any]) -> Sharing:
    """Losses by contention, by overload beyond a whole GPU, and by memory that spills; spills slow the job down too."""
    rates = np.array(case["rates"], dtype=np.float64)
    busy = np.array([gpu["busy"] for gpu in case["gpus"]])[None, :, None]
    free = np.array([gpu["free_gb"] for gpu in case["gpus"]])[None, :, None]
    jobs = case["jobs"]
    taken = np.array([job["busy"] for job in jobs])[:, None, None]
    memory = np.array([job["memory_gb"] for job in jobs])[:, None, None]
    rows = [[job["contention"][gpu["kind"]] for gpu in case["gpus"]] for job in jobs]
    over = np.maximum(busy + rates * taken - 1.0, 0.0)
    spill = np.maximum(memory - free, 0.0) / memory
    loss = np.array(rows)[:, :, None] * rates + over * case["over_loss"] + spill * case["spill_loss"] * rates
    speed = rates * (1.0 - case["spill_slow"] * spill) * np.maximum(1.0 - over, 0.0)
    gangs, worths = tuple(job["gang"] for job in jobs), tuple(job["weight"] for job in jobs)
    return Sharing(gangs, worths, speed, loss, case["production_loss"])


def solve(case: dict[str, Any], directory: Path) -> CaseAnswer:
    """GPUs and rates of the jobs that run, proven where the time limit leaves a proof."""
    result = share_gpus(problem_of(case), time_limit_s=TIME_LIMIT_S)
    if result.solution is None or result.objective is None:
        raise ValueError("no placement of the jobs was found within the time limit")
    running = {str(o): shared for o, shared in enumerate(result.solution) if shared is not None}
    jobs = {o: {"gpus": [*shared.gpus], "rate": case["rates"][shared.rate]} for o, shared in running.items()}
    return CaseAnswer({"jobs": jobs}, result.objective, result.bound, f"{len(jobs)} of {len(case['jobs'])} jobs run")
