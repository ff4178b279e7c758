"""Nodes that a day's jobs with a goal give up: of their days that are worth as much, the one of fewest node hours.

With the days of all other jobs as they are, a job has the nodes that these leave. By hour t, number of nodes n and node
hours h so far, the most of worth and progress, a unit of which counts u + f (`split`), is
    V_t(n, h) = max over m of V_t-1(m, h - |n|) + v_t(m, n) + (u + f) p_t(m, n),
and the job takes the least h at which its day, its goal included, is worth what it is now. O(T A^2 H).
Exact where v is the same for all steps that a job may take, as for jobs that are paid for progress alone; elsewhere the
day that is taken has no more node hours than the one at hand.
"""

from collections.abc import Sequence

import numpy as np

from planner.arrays import Bools, Indices, Ints
from planner.solvers.schedules.days.split import Day, DayJob, DaySplit

MOST_WORK = 500_000_000  # of steps and node hours of a job: larger ones stay as they are


def frugal(problem: DaySplit, day: Day, spare: float) -> Day:
    """The day with fewer node hours of jobs with a goal, in turn until none gives up more.

    A job is worth at most `spare` less each time.
    """
    paths, before = list(day), None
    while before != paths:
        before = list(paths)
        for k, job in enumerate(problem.jobs):
            if job.goal is not None:
                paths[k] = _fewest(job, paths[k], _left(problem, paths, k), spare)
    return tuple(paths)


def _left(problem: DaySplit, paths: Sequence[tuple[int, ...]], k: int) -> Ints:
    """Nodes by hour and pool that the other jobs leave. [T, P]"""
    taken = [job.nodes_AP[list(path)] for job, path in zip(problem.jobs, paths, strict=True)]
    return np.asarray(np.array(problem.nodes) - sum(taken) + taken[k])


def _fewest(job: DayJob, path: tuple[int, ...], free_TP: Ints, spare: float) -> tuple[int, ...]:
    """The day of a job within free nodes, of fewest node hours for what it is worth."""
    assert job.goal is not None
    nodes_A = job.nodes_AP.sum(axis=1)
    most = int(nodes_A[list(path)].sum())
    if len(free_TP) * len(nodes_A) ** 2 * (most + 1) > MOST_WORK:
        return path
    first_A, later_TAA = job.priced(np.zeros(free_TP.shape), job.goal.worth + job.goal.cost)
    fits_TA: Bools = np.asarray((job.nodes_AP[None] <= free_TP[:, None]).all(axis=-1))
    value_AH = np.full((len(nodes_A), most + 1), -np.inf)
    for a in np.flatnonzero(fits_TA[0] & (nodes_A <= most)):
        value_AH[a, nodes_A[a]] = first_A[a]
    came = []
    for step_AA, fits_A in zip(later_TAA, fits_TA[1:], strict=True):
        next_AH, from_AH = np.full_like(value_AH, -np.inf), np.zeros(value_AH.shape, dtype=np.intp)
        for b in np.flatnonzero(fits_A & (nodes_A <= most)):
            through_AH = value_AH[:, : most + 1 - nodes_A[b]] + step_AA[:, b, None]
            from_AH[b, nodes_A[b] :] = through_AH.argmax(axis=0)
            next_AH[b, nodes_A[b] :] = through_AH.max(axis=0)
        came.append(from_AH)
        value_AH = next_AH
    worth = job.worth(path)
    for hours in range(most):
        last = int(value_AH[:, hours].argmax())
        if np.isinf(value_AH[last, hours]):
            continue
        other = _traced(came, nodes_A, last, hours)
        if job.worth(other) >= worth - spare:
            return other
    return path


def _traced(came: Sequence[Indices], nodes_A: Ints, last: int, hours: int) -> tuple[int, ...]:
    """The way to a number of nodes with so many node hours."""
    path = [last]
    for from_AH in reversed(came):
        path.append(int(from_AH[path[-1], hours]))
        hours -= int(nodes_A[path[-2]])
    return tuple(reversed(path))
