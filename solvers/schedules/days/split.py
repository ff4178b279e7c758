"""Nodes of one cluster shared out to jobs, hour by hour: most worth of a day, with what changes cost and what is asked.

Sets        t in T hours, k in K jobs, p in P pools of equal nodes, n in A_k numbers n_p of nodes of every pool that job
            k can use (they may stand there several times, as states that differ in what may follow them)
Parameters  N_p nodes;  v_kt(m, n) worth of hour t with n nodes after m in the hour before;  n_k0 nodes before the day
            jobs with a goal also make p_k(m, n) progress in an hour, paid u_k a unit up to G_k; each unit below it
            costs f_k;  u_k + f_k >= 0
Variables   n_kt in A_k
Maximise    sum_kt v_kt(n_k,t-1, n_kt) + sum_k u_k min(P_k, G_k) - f_k max(G_k - P_k, 0)
            with P_k = sum p_k(n_k,t-1, n_kt) over hours t before the deadline of the job
(C1) sum_k n_ktp <= N_p                                                  for t in T, p in P
Solved in `solve`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from planner.arrays import Floats, Ints
from planner.errors import PlannerError

WHERE = "jobs"

Day = tuple[tuple[int, ...], ...]
"""For every job the index of its number of nodes, by hour. [K][T]"""

Counts = tuple[tuple[int, ...], ...]
"""Numbers of nodes that a job can have, of every pool. [A][P]"""

Steps = tuple[tuple[tuple[int, int, int], ...], ...]
"""For every job the steps (t, from, to) that a day may take; those of the first hour come from -1."""


def of_one_pool(counts: Sequence[int]) -> Counts:
    """Numbers of nodes of the only pool."""
    return tuple((count,) for count in counts)


def fewest(nodes: Sequence[int], counts_K: Sequence[Counts]) -> tuple[int, ...] | None:
    """Of every job the index of few nodes with which all fit, by depth-first search; None where none do. [K]"""
    free, tried = np.array(nodes), [0] * len(counts_K)
    chosen: list[int] = []
    rows_K = [np.array(counts, dtype=np.int64) for counts in counts_K]
    while len(chosen) < len(rows_K):
        k = len(chosen)
        fitting = np.flatnonzero((rows_K[k][tried[k] :] <= free).all(axis=1))
        if len(fitting):
            chosen.append(tried[k] + int(fitting[0]))
            free = free - rows_K[k][chosen[-1]]
            continue
        tried[k] = 0
        if not chosen:
            return None
        free = free + rows_K[k - 1][chosen[-1]]
        tried[k - 1] = chosen.pop() + 1
    return tuple(chosen)


@dataclass(frozen=True, slots=True)
class Goal:
    """Progress that a job is asked for: worth of a unit up to the target, and cost of each unit below it."""

    target: float
    worth: float
    cost: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class DayJob:
    """Numbers of nodes of every pool [A][P], the fewest first, and worth and progress by those before and in an hour.

    The first hour follows what ran before the day; the others are [T - 1, from, to]. Progress is the same in all hours
    before the deadline, and none after it.
    """

    counts: Counts
    first_A: Floats
    later_TAA: Floats
    goal: Goal | None = None
    progress_first_A: Floats = field(default_factory=lambda: np.zeros(0))
    progress_AA: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    deadline: int | None = None  # hours whose progress counts; all where None

    def __post_init__(self) -> None:
        size = len(self.counts)
        pools = {len(row) for row in self.counts}
        if not size or list(self.counts) != sorted(self.counts) or len(pools) > 1 or min(map(min, self.counts)) < 0:
            raise PlannerError(f"numbers of nodes {list(self.counts)}", where=WHERE, hint="give them from 0 up")
        if self.first_A.shape != (size,) or self.later_TAA.shape[1:] != (size, size):
            what = f"worth of shapes {self.first_A.shape} and {self.later_TAA.shape} for {size} numbers of nodes"
            raise PlannerError(what, where=WHERE, hint="give one for every number before and in an hour")
        if self.goal is None:
            return
        if self.progress_first_A.shape != (size,) or self.progress_AA.shape != (size, size):
            raise PlannerError("a goal without progress", where=WHERE, hint="give the progress of every step")
        if self.goal.target < 0.0 or self.goal.worth + self.goal.cost < 0.0:
            what = f"a target of {self.goal.target:g} at {self.goal.worth:g} a unit, {self.goal.cost:g} below"
            raise PlannerError(what, where=WHERE, hint="give a target of 0 or more, whose units are worth their cost")

    @property
    def hours(self) -> int:
        return 1 + len(self.later_TAA)

    @property
    def nodes_AP(self) -> Ints:
        """The numbers of nodes as an array."""
        return np.array(self.counts, dtype=np.int64)

    def progress_in(self, hour: int) -> Floats:
        """Of an hour after the first, by the numbers before and in it. [from, to]"""
        late = self.deadline is not None and hour >= self.deadline
        return np.zeros_like(self.progress_AA) if late else self.progress_AA

    def priced(self, price_TP: Floats, unit: float) -> tuple[Floats, Floats]:
        """Worth of the first hour and of later ones, less the price of nodes, with progress at so much a unit."""
        spent_TA = price_TP @ self.nodes_AP.T
        first_A = self.first_A - spent_TA[0]
        later_TAA = self.later_TAA - spent_TA[1:, None, :]
        if self.goal is not None:
            made_TAA = np.array([self.progress_in(t) for t in range(1, self.hours)]).reshape(later_TAA.shape)
            first_A, later_TAA = first_A + unit * self.progress_first_A, later_TAA + unit * made_TAA
        return first_A, later_TAA

    def worth(self, path: Sequence[int]) -> float:
        """Of a day of this job alone, its goal included."""
        value = float(self.first_A[path[0]])
        value += sum(float(self.later_TAA[t, a, b]) for t, (a, b) in enumerate(pairwise(path)))
        if self.goal is None:
            return value
        done, goal = self.progress(path), self.goal
        return value + goal.worth * min(done, goal.target) - goal.cost * max(goal.target - done, 0.0)

    def progress(self, path: Sequence[int]) -> float:
        """Of a day, for its goal."""
        steps = enumerate(pairwise(path), 1)
        return float(self.progress_first_A[path[0]]) + sum(float(self.progress_in(t)[a, b]) for t, (a, b) in steps)


@dataclass(frozen=True, slots=True, eq=False)
class DaySplit:
    """The problem, with the nodes of every pool; raises PlannerError where the fewest of all jobs are not there."""

    nodes: tuple[int, ...]
    jobs: tuple[DayJob, ...]

    def __post_init__(self) -> None:
        if len({job.hours for job in self.jobs}) != 1:
            raise PlannerError("jobs of different hours", where=WHERE, hint="give at least one, all for one day")
        if any(len(job.counts[0]) != len(self.nodes) for job in self.jobs):
            raise PlannerError("jobs of different pools", where=WHERE, hint="give numbers of nodes of every pool")
        if self.fewest() is None:
            least = sum(min(map(sum, job.counts)) for job in self.jobs)
            what = f"jobs take {least} nodes at the least, and there are {sum(self.nodes)}"
            raise PlannerError(what, where=WHERE, hint="let some job use fewer nodes, or none")

    @property
    def hours(self) -> int:
        return self.jobs[0].hours

    def fewest(self) -> tuple[int, ...] | None:
        """Of every job the index of few nodes with which all fit; None where none do. [K]"""
        return fewest(self.nodes, [job.counts for job in self.jobs])

    def worth(self, day: Day) -> float:
        """What is maximised."""
        return math.fsum(job.worth(path) for job, path in zip(self.jobs, day, strict=True))

    def nodes_of(self, day: Day) -> list[list[tuple[int, ...]]]:
        """Nodes of every hour, job and pool. [T][K][P]"""
        rows = [[job.counts[a] for a in path] for job, path in zip(self.jobs, day, strict=True)]
        return [list(row) for row in zip(*rows, strict=True)]
