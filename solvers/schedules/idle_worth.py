"""What any number of machines of each kind is worth to jobs of equal tasks (`idle_machines`), for all numbers at once.

Sets        j in J jobs,  k in K kinds of machines,  a in A_j ways for a job
Parameters  n_ak machines that a way takes, v_ja = w_j r_j / s_a what it is worth (as in `idle_machines`)
Recurrence  E_0(n) = 0;  E_j(n) = max(E_j-1(n), max over a with n_a <= n of E_j-1(n - n_a) + v_ja)
            without the first of the two for jobs with a least speed; ways below it are left out
E_J(n) is what `share_machines` finds on n machines, minus infinity where the least speeds cannot all be kept.
O(prod_k (N_k + 1) sum_j |A_j|).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from planner.arrays import Floats
from planner.errors import PlannerError
from planner.solvers.schedules.idle_machines import TaskJob, speed_of, ways_of

MOST_CELLS = 4_000_000
"""Numbers of machines that are told apart."""


def worth_of_machines(jobs: Sequence[TaskJob], machines: Mapping[str, int]) -> Floats:
    """The worth of 0 to N_k machines of every kind, an axis a kind; raises PlannerError for too many."""
    shape = tuple(number + 1 for number in machines.values())
    if np.prod(shape, dtype=np.float64) > MOST_CELLS:
        what = f"machines of {len(shape)} kinds, {', '.join(map(str, machines.values()))} of them"
        raise PlannerError(what, where="machines", hint="leave some of them out")
    worth = np.zeros(shape)
    for job in with_references(jobs, machines):
        best = np.full(shape, -np.inf) if job.least_speed else worth.copy()
        for way in ways_of(job, machines):
            if speed_of(job, way) < job.least_speed:
                continue
            there = tuple(slice(taken, None) for taken in way.machines)
            left = tuple(slice(0, size - taken) for size, taken in zip(shape, way.machines, strict=True))
            best[there] = np.maximum(best[there], worth[left] + job.worth * speed_of(job, way))
        worth = best
    return worth


def with_references(jobs: Sequence[TaskJob], machines: Mapping[str, int]) -> list[TaskJob]:
    """The jobs with the rounds that their speeds are told against: alone on all machines, where none is given."""
    made = []
    for job in jobs:
        if job.reference_s is None:
            own = ways_of(job, machines)
            job = replace(job, reference_s=own[0].round_s if own else None)
        made.append(job)
    return made
