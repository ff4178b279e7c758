"""Exchanges of nodes between a few jobs of a day: the best of all their days together, the others left as they are.

A dynamic program over their joint numbers of nodes,
    V_t(n_1..n_m) = max over m_1..m_m of V_t-1(m) + sum_k v_kt(m_k, n_k)   where the others leave sum_k n_kp nodes
Worth is by job, so that the maximum is taken one job at a time: O(T m A^(m+1)). Goals are priced: progress of a job at
each of some worths of a unit, and the day that is truly better is taken.
"""

import itertools
import math
import time
from collections.abc import Sequence

import numpy as np

from planner.arrays import Floats
from planner.solvers.schedules.days.split import Day, DaySplit

MOST_CELLS = 4_000_000  # of one maximum
MOST_WORK = 400_000_000  # of one program over all jobs and hours
LARGEST = 3  # jobs of an exchange
MOST_GROUPS = 600  # of as many jobs: more of them are not tried, but for single jobs
MOST_PASSES = 20
MOST_EXCHANGED = 150_000_000  # of all programs of a round of exchanges together


def affordable(problem: DaySplit, members: Sequence[int], most: int = MOST_WORK) -> bool:
    """Whether the joint program of these jobs is small enough."""
    sizes = [len(problem.jobs[k].counts) for k in members]
    states = math.prod(sizes)
    return states * max(sizes) <= MOST_CELLS * 5 and _work(problem, members) <= most


def joint_work(problem: DaySplit) -> int:
    """Steps of the joint program of all jobs."""
    return _work(problem, range(len(problem.jobs)))


def exchanged(problem: DaySplit, day: Day, units: Sequence[float], deadline: float = math.inf) -> Day:
    """The day after exchanges of up to three jobs that make it worth more, until none does or too much is done.

    An exchange that was tried since the day last changed is not tried again, and none behind the deadline, of
    `time.perf_counter`.
    """
    groups = [
        members
        for size in range(min(LARGEST, len(problem.jobs)), 0, -1)
        if size == 1 or math.comb(len(problem.jobs), size) <= MOST_GROUPS
        for members in itertools.combinations(range(len(problem.jobs)), size)
        if affordable(problem, members, MOST_WORK // 20)
    ]
    worth, work = problem.worth(day), 0
    tried: dict[tuple[int, ...], Day] = {}
    for _ in range(MOST_PASSES):
        before = worth
        for members in groups:
            if tried.get(members) is day or work > MOST_EXCHANGED or time.perf_counter() > deadline:
                continue
            for prices in _prices(problem, members, units):
                work += _work(problem, members)
                other = joint(problem, day, members, prices)
                more = math.fsum(problem.jobs[k].worth(other[k]) - problem.jobs[k].worth(day[k]) for k in members)
                if more > 1e-9 * max(abs(worth), 1.0):
                    day, worth = other, worth + more
            tried[members] = day
        if worth == before:
            break
    return day


def _work(problem: DaySplit, members: Sequence[int]) -> int:
    """Steps of the joint program of these jobs."""
    sizes = [len(problem.jobs[k].counts) for k in members]
    return math.prod(sizes) * sum(sizes) * problem.hours


def _prices(problem: DaySplit, members: Sequence[int], units: Sequence[float]) -> list[tuple[float, ...]]:
    """Worths of progress to try: those of the relaxation, all that a unit below the target is worth, and above it."""
    goals = [problem.jobs[k].goal for k in members]
    if not any(goals):
        return [()]
    at = tuple(units[k] for k in members)
    below = tuple(goal.worth + goal.cost if goal else 0.0 for goal in goals)
    half = tuple((a + b) / 2.0 for a, b in zip(at, below, strict=True))
    return [at, half, below, tuple(0.5 * a for a in at)]


def joint(problem: DaySplit, day: Day, members: Sequence[int], units: Sequence[float]) -> Day:
    """The day with the best joint days of these jobs, goals at the given worths of a unit."""
    jobs = [problem.jobs[k] for k in members]
    others = [k for k in range(len(problem.jobs)) if k not in members]
    held_KTP = [problem.jobs[k].nodes_AP[list(day[k])] for k in others]
    left_TP = np.array(problem.nodes) - sum(held_KTP, start=np.zeros((problem.hours, len(problem.nodes)), np.int64))
    free = np.zeros(left_TP.shape)
    tables = [job.priced(free, units[i] if units else 0.0) for i, job in enumerate(jobs)]
    sizes = tuple(len(job.counts) for job in jobs)
    load, value = np.zeros((*sizes, len(problem.nodes)), np.int64), np.zeros(sizes)
    for axis, (job, (first_A, _)) in enumerate(zip(jobs, tables, strict=True)):
        shape = [1] * len(jobs)
        shape[axis] = -1
        load = load + job.nodes_AP.reshape(*shape, len(problem.nodes))
        value = value + first_A.reshape(shape)
    value = np.where((load <= left_TP[0]).all(axis=-1), value, -np.inf)
    came = []
    for t in range(1, problem.hours):
        origins = []
        for axis, (_, later_TAA) in enumerate(tables):
            value, origin = _stepped(value, later_TAA[t - 1], axis)
            origins.append(origin)
        value = np.where((load <= left_TP[t]).all(axis=-1), value, -np.inf)
        came.append(origins)
    paths = _traced(value, came)
    rows = list(day)
    for k, path in zip(members, paths, strict=True):
        rows[k] = path
    return tuple(rows)


def _stepped(
    value: Floats, step_AA: Floats, axis: int
) -> "tuple[Floats, np.ndarray[tuple[int, ...], np.dtype[np.intp]]]":
    """The maximum over what one job had before, and where it is."""
    last = np.moveaxis(value, axis, -1)
    through = last[..., :, None] + step_AA
    origin = through.argmax(axis=-2)
    best = np.take_along_axis(through, origin[..., None, :], axis=-2)[..., 0, :]
    return np.moveaxis(best, -1, axis), np.moveaxis(origin, -1, axis)


def _traced(
    value: Floats, came: "Sequence[Sequence[np.ndarray[tuple[int, ...], np.dtype[np.intp]]]]"
) -> list[tuple[int, ...]]:
    """Numbers of nodes of every job by hour, back from the best end."""
    at = [int(index) for index in np.unravel_index(int(value.argmax()), value.shape)]
    steps = [list(at)]
    for origins in reversed(came):
        for axis in reversed(range(len(origins))):
            at[axis] = int(origins[axis][tuple(at)])
        steps.append(list(at))
    return [tuple(path) for path in zip(*reversed(steps), strict=True)]
