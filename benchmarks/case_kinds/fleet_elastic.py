"""Elastic jobs on idle GPUs of several types (EasyScale): most weight times speed, none slower than is asked."""

from pathlib import Path
from typing import Any

from case_kinds import CaseAnswer
from planner.solvers.schedules.idle_machines import TaskJob, share_machines

TIME_LIMIT_S = 60.0


def solve(case: dict[str, Any], directory: Path) -> CaseAnswer:
    """GPUs of every job by type, proven where the time limit leaves a proof."""
    jobs = [
        TaskJob(
            job["workers"],
            job["worker_s"],
            job["most_workers"],
            worth=job["weight"],
            reference_s=job["reference_s"],
            least_speed=case["least_speed"],
        )
        for job in case["jobs"]
    ]
    machines = dict(zip(case["types"], case["gpus"], strict=True))
    result = share_machines(jobs, machines, time_limit_s=TIME_LIMIT_S)
    if result.solution is None or result.objective is None:
        raise ValueError(f"no GPUs give every job {case['least_speed']:g} of its reference speed: {result.status}")
    counts = [[0] * len(machines) if way is None else [*way.machines] for way in result.solution]
    return CaseAnswer({"counts": counts}, result.objective, result.bound, f"{sum(map(sum, counts))} GPUs are used")
