"""The linear relaxation of a day's split by column generation, with the bound that its prices prove.

Sets        j in J_k days of job k alone, as far as they were made
Parameters  w_kj worth of day j without its goal, q_kj its progress, n_kjtp its nodes of pool p
Variables   x_kj >= 0;  d_k in [0, G_k] progress that is paid
Maximise    sum w_kj x_kj + sum_k (u_k + f_k) d_k - f_k G_k
(C1) sum_kj n_kjtp x_kj <= N_p       for t in T, p in P    prices l_tp
(C2) sum_j x_kj = 1                  for k in K
(C3) d_k <= sum_j q_kj x_kj          for jobs with a goal, prices m_k
For any prices l >= 0 and m >= 0 no day is worth more than
    sum_tp N_p l_tp + sum_k max over its days (worth + m_k progress - l nodes)
    + sum_k max(u_k + f_k - m_k, 0) G_k - f_k G_k
where the largest of each job is a longest path over its numbers of nodes; those that are longest are the new days.
Prices are smoothed towards the best ones (Wentges, 1997), and the least bound over all prices is the one returned.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from planner.arrays import Floats
from planner.solvers.backends.model import Expr, LinearModel
from planner.solvers.schedules.days.split import Day, DayJob, DaySplit, Steps

MOST_ROUNDS = 150
SMOOTHING = 0.5  # of prices, towards those of the best bound
CLOSE = 1e-6  # of the bound and what the made days reach together: no more rounds
SLACK = 1e-7  # of the worth: steps are left out where their bound is lower by more


@dataclass(frozen=True, slots=True, eq=False)
class Prices:
    """Of a node of every pool in every hour [T, P], and of progress of every job [K]; without a goal 0."""

    hour_TP: Floats
    units: tuple[float, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Relaxation:
    """The bound with the prices that prove it."""

    problem: DaySplit
    bound: float
    prices: Prices
    made: "Made"

    @property
    def units(self) -> tuple[float, ...]:
        """Worth of progress of every job."""
        return self.prices.units

    def steps_above(self, worth: float) -> Steps:
        """Steps of single jobs that a day worth more may take, by the best path through each at the best prices."""
        spare = self.bound - worth + SLACK * max(abs(worth), 1.0)
        return tuple(
            _steps_within(job, self.prices.hour_TP, unit, spare)
            for job, unit in zip(self.problem.jobs, self.units, strict=True)
        )

    def keep(self, day: Day) -> None:
        """The days of single jobs of this one are at hand too."""
        for job, days, path in zip(self.problem.jobs, self.made, day, strict=True):
            days.setdefault(path, _column(job, path))


def relaxed(problem: DaySplit, deadline: float = math.inf) -> Relaxation:
    """The relaxation, solved until no day of a single job is missing, or for as many rounds as are allowed.

    `deadline`, of `time.perf_counter`: no round begins behind it but the first.
    """
    fewest = problem.fewest()
    assert fewest is not None, "the problem has room for the fewest nodes of all jobs"
    idle = [(index,) * problem.hours for index in fewest]
    made: Made = [{path: _column(job, path)} for job, path in zip(problem.jobs, idle, strict=True)]
    best, at = math.inf, Prices(np.zeros((problem.hours, len(problem.nodes))), tuple(0.0 for _ in problem.jobs))
    smooth, master = SMOOTHING, _Master(problem, made)
    for _ in range(MOST_ROUNDS):
        reached, prices = master.solved()
        asked = at if math.isinf(best) else _between(at, prices, smooth)
        bound, paths = bound_at(problem, asked)
        fresh = master.added(paths)
        if bound < best:
            best, at = bound, asked
        if best - reached <= CLOSE * max(abs(best), 1.0) or time.perf_counter() > deadline:
            break
        smooth = SMOOTHING if fresh else 0.0
        if not fresh:
            bound, paths = bound_at(problem, prices)
            if bound < best:
                best, at = bound, prices
            if not master.added(paths):
                break
    return Relaxation(problem, best, at, made)


def bound_at(problem: DaySplit, prices: Prices) -> tuple[float, list[tuple[int, ...]]]:
    """What no day is worth more than, by these prices, and the days of single jobs that are worth most at them."""
    value, paths = float((prices.hour_TP @ np.array(problem.nodes)).sum()), []
    for job, unit in zip(problem.jobs, prices.units, strict=True):
        longest, path = longest_path(*job.priced(prices.hour_TP, unit))
        value += longest
        paths.append(path)
        if job.goal is not None:
            goal = job.goal
            value += max(goal.worth + goal.cost - unit, 0.0) * goal.target - goal.cost * goal.target
    return value, paths


def longest_path(first_A: Floats, later_TAA: Floats) -> tuple[float, tuple[int, ...]]:
    """The way through the hours that is worth most; O(T A^2)."""
    value_A, came = first_A, []
    for step_AA in later_TAA:
        through_AA = value_A[:, None] + step_AA
        came.append(through_AA.argmax(axis=0))
        value_A = through_AA.max(axis=0)
    path = [int(value_A.argmax())]
    for from_A in reversed(came):
        path.append(int(from_A[path[-1]]))
    return float(value_A.max()), tuple(reversed(path))


def _between(at: Prices, prices: Prices, smooth: float) -> Prices:
    units = tuple(smooth * a + (1.0 - smooth) * b for a, b in zip(at.units, prices.units, strict=True))
    return Prices(smooth * at.hour_TP + (1.0 - smooth) * prices.hour_TP, units)


@dataclass(frozen=True, slots=True)
class Column:
    """A day of a job alone: worth without its goal, progress, and nodes by hour and pool."""

    worth: float
    progress: float
    nodes: tuple[float, ...]


Made = Sequence[dict[tuple[int, ...], Column]]


def _column(job: DayJob, path: tuple[int, ...]) -> Column:
    later = sum(float(job.later_TAA[t, a, b]) for t, (a, b) in enumerate(pairwise(path)))
    progress = 0.0 if job.goal is None else job.progress(path)
    return Column(
        float(job.first_A[path[0]]) + later, progress, tuple(float(nodes) for a in path for nodes in job.counts[a])
    )


def program_of(problem: DaySplit, made: Made, *, whole: bool = False) -> LinearModel:
    """(C1) to (C3), rows in this order; columns are the made days of every job in turn, then what is paid.

    `whole`: every job has one of its days.
    """
    model = LinearModel()
    loads: list[dict[int, float]] = [{} for _ in range(problem.hours * len(problem.nodes))]
    worth: dict[int, float] = {}
    ones, goals, offset = [], [], 0.0
    for k, days in enumerate(made):
        own = [model.variable(f"x[{k},{j}]", 0.0, 1.0, integer=whole).column for j in range(len(days))]
        ones.append(Expr(dict.fromkeys(own, 1.0)))
        for column, day in zip(own, days.values(), strict=True):
            worth[column] = day.worth
            for load, nodes in zip(loads, day.nodes, strict=True):
                load[column] = nodes
    for k, days in enumerate(made):
        goal = problem.jobs[k].goal
        if goal is not None:
            done = model.continuous(f"d[{k}]", 0.0, goal.target)
            own = list(ones[k].terms)
            progress = {column: day.progress for column, day in zip(own, days.values(), strict=True)}
            goals.append((k, done <= Expr(progress)))
            worth[done.column] = goal.worth + goal.cost
            offset -= goal.cost * goal.target
    for row, load in enumerate(loads):
        t, p = divmod(row, len(problem.nodes))
        model.add(Expr(load) <= float(problem.nodes[p]), f"C1[{t},{p}]")
    for k, total in enumerate(ones):
        model.add(total == 1.0, f"C2[{k}]")
    for k, relation in goals:
        model.add(relation, f"C3[{k}]")
    model.maximise(Expr(worth, offset))
    return model


class _Master:
    """The relaxation over the days made so far, solved again from where it was as days come."""

    def __init__(self, problem: DaySplit, made: Made) -> None:
        from planner.solvers.backends.mathopt import Relaxation as LinearProgram

        self.problem, self.made = problem, made
        self.hours = problem.hours * len(problem.nodes)
        with_goal = [k for k, job in enumerate(problem.jobs) if job.goal is not None]
        self.goal_row = {k: self.hours + len(problem.jobs) + row for row, k in enumerate(with_goal)}
        self.program = LinearProgram(program_of(problem, made))

    def solved(self) -> tuple[float, Prices]:
        """What the made days reach together, and the prices there."""
        answer = self.program.solve_again()
        assert answer.duals is not None, "the fewest nodes of all jobs fit"
        assert answer.objective is not None
        hour_TP = np.maximum(np.array(answer.duals[: self.hours]), 0.0).reshape(self.problem.hours, -1)
        units = [max(answer.duals[self.goal_row[k]], 0.0) if k in self.goal_row else 0.0 for k in range(len(self.made))]
        return answer.objective, Prices(hour_TP, tuple(units))

    def added(self, paths: Sequence[tuple[int, ...]]) -> bool:
        """Whether any of the paths is new, which is a column from now on."""
        fresh = False
        for k, (days, path) in enumerate(zip(self.made, paths, strict=True)):
            if path in days:
                continue
            fresh, day = True, _column(self.problem.jobs[k], path)
            days[path] = day
            rows = {row: nodes for row, nodes in enumerate(day.nodes) if nodes} | {self.hours + k: 1.0}
            if k in self.goal_row:
                rows[self.goal_row[k]] = -day.progress
            self.program.add_column(day.worth, rows, 1.0)
        return fresh


def _steps_within(job: DayJob, hour_TP: Floats, unit: float, spare: float) -> tuple[tuple[int, int, int], ...]:
    """Steps whose best path falls short of the longest by no more than can be spared."""
    first_A, later_TAA = job.priced(hour_TP, unit)
    ahead = [first_A]
    for step_AA in later_TAA:
        ahead.append((ahead[-1][:, None] + step_AA).max(axis=0))
    behind = [np.zeros(len(job.counts))]
    for step_AA in later_TAA[::-1]:
        behind.append((step_AA + behind[-1]).max(axis=1))
    behind.reverse()
    least = float(ahead[-1].max()) - spare
    steps = [(0, -1, int(b)) for b in np.flatnonzero(first_A + behind[0] >= least)]
    for t, step_AA in enumerate(later_TAA):
        through_AA = ahead[t][:, None] + step_AA + behind[t + 1]
        steps += [(t + 1, int(a), int(b)) for a, b in zip(*np.nonzero(through_AA >= least), strict=True)]
    return tuple(steps)
