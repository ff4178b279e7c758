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
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from planner.arrays import Floats
from planner.solvers.backends.model import Expr, LinearModel
from planner.solvers.schedules.days.split import DayJob, DaySplit, Steps

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


def relaxed(problem: DaySplit) -> Relaxation:
    """The relaxation, solved until no day of a single job is missing, or for as many rounds as are allowed."""
    fewest = problem.fewest()
    assert fewest is not None, "the problem has room for the fewest nodes of all jobs"
    idle = [(index,) * problem.hours for index in fewest]
    made = [{path: _column(job, path)} for job, path in zip(problem.jobs, idle, strict=True)]
    best, at = math.inf, Prices(np.zeros((problem.hours, len(problem.nodes))), tuple(0.0 for _ in problem.jobs))
    smooth = SMOOTHING
    for _ in range(MOST_ROUNDS):
        reached, prices = _master(problem, made)
        asked = at if math.isinf(best) else _between(at, prices, smooth)
        bound, paths = bound_at(problem, asked)
        fresh = _added(problem, made, paths)
        if bound < best:
            best, at = bound, asked
        if best - reached <= CLOSE * max(abs(best), 1.0):
            break
        smooth = SMOOTHING if fresh else 0.0
        if not fresh:
            bound, paths = bound_at(problem, prices)
            if bound < best:
                best, at = bound, prices
            if not _added(problem, made, paths):
                break
    return Relaxation(problem, best, at)


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


def _added(problem: DaySplit, made: "Made", paths: Sequence[tuple[int, ...]]) -> bool:
    """Whether any of the paths is new."""
    fresh = False
    for job, days, path in zip(problem.jobs, made, paths, strict=True):
        if path not in days:
            days[path] = _column(job, path)
            fresh = True
    return fresh


@dataclass(frozen=True, slots=True)
class _Column:
    """A day of a job alone: worth without its goal, progress, and nodes by hour and pool."""

    worth: float
    progress: float
    nodes: tuple[float, ...]


Made = Sequence[dict[tuple[int, ...], _Column]]


def _column(job: DayJob, path: tuple[int, ...]) -> _Column:
    later = sum(float(job.later_TAA[t, a, b]) for t, (a, b) in enumerate(pairwise(path)))
    progress = 0.0 if job.goal is None else job.progress(path)
    return _Column(
        float(job.first_A[path[0]]) + later, progress, tuple(float(nodes) for a in path for nodes in job.counts[a])
    )


def _program(problem: DaySplit, made: Made) -> LinearModel:
    """(C1) to (C3), rows in this order; columns are the made days of every job in turn, then what is paid."""
    model = LinearModel()
    loads: list[dict[int, float]] = [{} for _ in range(problem.hours * len(problem.nodes))]
    worth: dict[int, float] = {}
    ones, goals, offset = [], [], 0.0
    for k, days in enumerate(made):
        own = [model.variable(f"x[{k},{j}]", 0.0, 1.0).column for j in range(len(days))]
        ones.append(Expr(dict.fromkeys(own, 1.0)))
        for column, day in zip(own, days.values(), strict=True):
            worth[column] = day.worth
            for load, nodes in zip(loads, day.nodes, strict=True):
                load[column] = nodes
        goal = problem.jobs[k].goal
        if goal is not None:
            done = model.continuous(f"d[{k}]", 0.0, goal.target)
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


def _master(problem: DaySplit, made: Made) -> tuple[float, Prices]:
    """What the made days reach together, and the prices there."""
    from planner.solvers.backends.mathopt import Relaxation as LinearProgram

    model = _program(problem, made)
    answer = LinearProgram(model).solve(model.lower, model.upper)
    assert answer.duals is not None, "the fewest nodes of all jobs fit"
    assert answer.objective is not None
    rows = problem.hours * len(problem.nodes)
    hour_TP = np.maximum(np.array(answer.duals[:rows]), 0.0).reshape(problem.hours, -1)
    rest = iter(answer.duals[rows + len(problem.jobs) :])
    units = tuple(max(next(rest), 0.0) if job.goal is not None else 0.0 for job in problem.jobs)
    return answer.objective, Prices(hour_TP, units)


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
