"""Multidimensional multiple-choice knapsack: machines of several kinds shared out to jobs of equal tasks.

Sets        j in J jobs,  k in K kinds of machines,  a in A_j ways for a job
Parameters  N_k machines of a kind;  job j has W_j tasks, of which a machine of kind k does one in t_jk seconds and
            holds c_jk at most, and takes g_j machines at a time;  x_j [s] more in every round;  w_j its worth
            A way a takes n_ak machines of each kind and ends a round after s_a = x_j + max over k of t_jk m_k, where
            each machine of kind k does m_k <= c_jk tasks and sum_k n_ak m_k / g_j >= W_j
            r_j [s] the round that its speed is told against: the shortest of a job that has all machines to itself,
            where none is given;  q_j the least speed r_j / s_a that it may have
Variables   y_ja in {0,1} job j runs in way a
Maximise    sum_ja w_j r_j / s_a y_ja
(C1) sum_a y_ja <= 1                       for j in J    a job runs in one way, or waits
(C2) sum_ja n_ak y_ja <= N_k               for k in K    machines at hand
(C3) sum_a y_ja = 1                        for jobs with a least speed; ways below it are left out

The jobs together are then as fast as can be. Ways of a job that need no fewer machines of any kind than another and end
no earlier are left out.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from planner.errors import PlannerError
from planner.solvers.backends.model import LinearModel, total
from planner.solvers.result import SolveResult, Status

DUST = 1e-12


@dataclass(frozen=True, slots=True)
class TaskJob:
    """A job: by kind, seconds of a task and tasks that a machine holds at most; kinds that are absent cannot run it."""

    tasks: int
    task_s: Mapping[str, float]
    most: Mapping[str, int]
    group: int = 1  # machines that do a task together
    more_s: float = 0.0  # of every round
    worth: float = 1.0
    reference_s: float | None = None  # the round whose speed is 1
    least_speed: float = 0.0

    def __post_init__(self) -> None:
        if self.tasks < 1 or self.group < 1 or any(seconds <= 0.0 for seconds in self.task_s.values()):
            raise PlannerError(
                "a job of no tasks, machines or time",
                where="jobs",
                hint="give at least one task and machine, and a time above 0",
            )
        if self.least_speed < 0.0 or (self.reference_s is not None and self.reference_s <= 0.0):
            raise PlannerError(
                f"a least speed of {self.least_speed:g}, told against {self.reference_s or 0.0:g} s",
                where="jobs",
                hint="give a speed of 0 or more, and a time above 0",
            )


@dataclass(frozen=True, slots=True)
class Way:
    """Machines of each kind that a job takes, and when its round ends."""

    machines: tuple[int, ...]
    round_s: float


def ways_of(job: TaskJob, machines: Mapping[str, int]) -> tuple[Way, ...]:
    """Every way of a job that no other dominates, shortest rounds first."""
    best: list[Way] = []
    for round_s in sorted({job.task_s[k] * m for k in job.task_s for m in range(1, min(job.tasks, job.most[k]) + 1)}):
        for way in _fewest(job, machines, round_s):
            if not any(all(a <= b for a, b in zip(known.machines, way.machines, strict=True)) for known in best):
                best.append(way)
    return tuple(best)


def share_machines(
    jobs: Sequence[TaskJob], machines: Mapping[str, int], *, time_limit_s: float | None = None
) -> SolveResult[tuple[Way | None, ...]]:
    """The way of each job, None for one that waits, with the proven bound; O(ways) binaries.

    INFEASIBLE where jobs cannot all have their least speeds.
    """
    from planner.solvers.backends.solve import solve

    started = time.perf_counter()
    every = [ways_of(job, machines) for job in jobs]
    references = [job.reference_s or own[0].round_s if own else 0.0 for job, own in zip(jobs, every, strict=True)]
    jobs = [replace(job, reference_s=at or None) for job, at in zip(jobs, references, strict=True)]
    ways = [
        tuple(way for way in own if speed_of(job, way) >= job.least_speed) for job, own in zip(jobs, every, strict=True)
    ]
    if any(job.least_speed and not own for job, own in zip(jobs, ways, strict=True)):
        took_s = time.perf_counter() - started
        return SolveResult(Status.INFEASIBLE, "finished", None, None, None, took_s, "ways")
    model = build(jobs, ways, list(machines.values()))
    result = solve(model, time_limit_s=time_limit_s)
    chosen, value = None, None
    if result.solution is not None:
        chosen = tuple(
            next((way for a, way in enumerate(own) if result.solution[f"y[{j},{a}]"] > 0.5), None)
            for j, own in enumerate(ways)
        )
        value = sum(job.worth * speed_of(job, way) for job, way in zip(jobs, chosen, strict=True) if way is not None)
    took_s = time.perf_counter() - started
    return SolveResult(result.status, result.stop_reason, chosen, value, result.bound, took_s, result.solver)


def build(jobs: Sequence[TaskJob], ways: Sequence[Sequence[Way]], machines: Sequence[int]) -> LinearModel:
    """The choice of ways as an integer program."""
    model = LinearModel()
    y = {(j, a): model.binary(f"y[{j},{a}]") for j, own in enumerate(ways) for a in range(len(own))}
    model.maximise(total(jobs[j].worth * speed_of(jobs[j], ways[j][a]) * y[j, a] for j, a in y))
    for j, own in enumerate(ways):
        chosen = total(y[j, a] for a in range(len(own)))
        if jobs[j].least_speed:
            model.add(chosen == 1.0, name=f"C3[{j}]")
        else:
            model.add(chosen <= 1.0, name=f"C1[{j}]")
    for k, number in enumerate(machines):
        model.add(total(float(ways[j][a].machines[k]) * y[j, a] for j, a in y) <= float(number), name=f"C2[{k}]")
    return model


def speed_of(job: TaskJob, way: Way) -> float:
    """r_j / s_a."""
    assert job.reference_s is not None
    return job.reference_s / way.round_s


def _fewest(job: TaskJob, machines: Mapping[str, int], busy_s: float) -> Iterator[Way]:
    """Ways to do all tasks within `busy_s` with no machine to spare, as many of the last kind as the others leave."""
    holds = [_tasks_in_time(job, kind, busy_s) for kind in machines]
    ranges = [_range(job, number, in_time) for number, in_time in zip(machines.values(), holds, strict=True)]
    last = max((index for index, in_time in enumerate(holds) if in_time), default=None)
    if last is None:
        return
    for taken in product(*(values if index != last else range(1) for index, values in enumerate(ranges))):
        done = sum(number * in_time for number, in_time in zip(taken, holds, strict=True))
        more = max(math.ceil((job.tasks - done) / holds[last]), 0)
        if more in ranges[last]:
            groups = [more if index == last else number for index, number in enumerate(taken)]
            yield Way(tuple(number * job.group for number in groups), busy_s + job.more_s)


def _tasks_in_time(job: TaskJob, kind: str, busy_s: float) -> int:
    """Tasks that a machine of this kind does in time."""
    if kind not in job.task_s:
        return 0
    return min(int(busy_s / job.task_s[kind] * (1.0 + DUST)), job.most[kind])


def _range(job: TaskJob, number: int, in_time: int) -> range:
    """Groups of machines of a kind that can be of use."""
    if not in_time:
        return range(1)
    return range(min(number // job.group, math.ceil(job.tasks / in_time)) + 1)
