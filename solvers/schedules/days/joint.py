"""Bounds of the joint program over all jobs of a day at worths of progress, and the days that prove them.

(C1) holds as it stands there, and goals are priced: for any m_k in [0, u_k + f_k] no day is worth more than
    max over days of (worth without goals + sum_k m_k P_k) + sum_k (u_k + f_k - m_k) G_k - f_k G_k,
convex in m with P_k - G_k as a subgradient. The next prices are, half-way from the best ones, those where the days met
so far prove least (Kelley's cutting planes, smoothed as those of `columns`). Where the joint program over all jobs
is too large, it leaves states out (`bounded`).
"""

import math
from dataclasses import dataclass, replace

from planner.solvers.backends.model import LinearModel, total
from planner.solvers.backends.solve import solve
from planner.solvers.schedules.days.bounded import bounded
from planner.solvers.schedules.days.columns import Prices, Relaxation, bound_at
from planner.solvers.schedules.days.exchange import joint, joint_work
from planner.solvers.schedules.days.split import Day, DaySplit

CLOSE = 1e-9  # of the worth: no more prices
MOST_PRICES = 25
MOST_WORK = 500_000_000  # of joint programs at all prices together
LEAST_PRICES = 3  # even so
SMOOTHING = 0.5
NARROW_PRICES = 8  # where states are left out
WIDTH = 1_000  # states of an hour where some are left out


@dataclass(frozen=True, slots=True)
class JointBound:
    """The least bound over all prices tried, these prices, and the days met on the way."""

    days: list[Day]
    bound: float
    prices: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Cut:
    """What a day proves at prices m: `at` + sum_k m_k `slope[k]`."""

    at: float
    slope: tuple[float, ...]


def jointly(relaxation: Relaxation, day: Day, gap: float = CLOSE, *, whole: bool) -> JointBound:
    """The bound from the worths of progress of the relaxation on; `whole` programs leave no state out."""
    problem = relaxation.problem
    worth, most = problem.worth(day), most_of_units(problem)
    prices = tuple(min(max(unit, 0.0), high) for unit, high in zip(relaxation.units, most, strict=True))
    days, cuts, best, least = [day], [_cut(problem, day)], prices, math.inf
    calls = max(LEAST_PRICES, MOST_WORK // joint_work(problem)) if whole else NARROW_PRICES
    for _ in range(min(calls, MOST_PRICES) if any(most) else 1):
        other, bound = _best(relaxation, day, worth, prices, whole=whole)
        if bound < least:
            least, best = bound, prices
        if other is not None:
            days.append(other)
            cuts.append(_cut(problem, other))
            worth = max(worth, problem.worth(other))
        next_prices, model = _least(cuts, most)
        if least - max(worth, model) <= gap * max(abs(worth), 1.0):
            break
        prices = tuple(SMOOTHING * a + (1.0 - SMOOTHING) * b for a, b in zip(best, next_prices, strict=True))
    return JointBound(days, min(least, relaxation.bound), best)


def _best(
    relaxation: Relaxation, day: Day, worth: float, prices: tuple[float, ...], *, whole: bool
) -> tuple[Day | None, float]:
    """The best day at these prices of progress, where one is met, and the bound that they prove."""
    problem = relaxation.problem
    if whole:
        best = joint(problem, day, range(len(problem.jobs)), prices)
        cut = _cut(problem, best)
        return best, cut.at + sum(m * slope for m, slope in zip(prices, cut.slope, strict=True))
    at = Prices(relaxation.prices.hour_TP, prices)
    return bounded(replace(relaxation, bound=bound_at(problem, at)[0], prices=at), worth, WIDTH)


def _cut(problem: DaySplit, day: Day) -> _Cut:
    """The worth of the day with its progress priced."""
    at, slope = 0.0, []
    for job, path in zip(problem.jobs, day, strict=True):
        at += job.worth(path)
        if (goal := job.goal) is None:
            slope.append(0.0)
            continue
        done = job.progress(path)
        at += goal.worth * (goal.target - min(done, goal.target)) + goal.cost * max(goal.target - done, 0.0)
        slope.append(done - goal.target)
    return _Cut(at, tuple(slope))


def _least(cuts: list[_Cut], most: list[float]) -> tuple[tuple[float, ...], float]:
    """The prices at which the largest of the cuts is least, and how large it is there."""
    model = LinearModel()
    prices = [model.continuous(f"m[{k}]", 0.0, high) for k, high in enumerate(most)]
    largest = model.variable("largest", -float("inf"))
    for index, cut in enumerate(cuts):
        line = total(slope * m for m, slope in zip(prices, cut.slope, strict=True) if slope)
        model.add(largest >= line + cut.at, f"cut[{index}]")
    model.minimise(largest)
    solution = solve(model).solution
    assert solution is not None
    return tuple(solution.value(m) for m in prices), solution.value(largest)


def most_of_units(problem: DaySplit) -> list[float]:
    """All that a unit below the target is worth, of every job; without a goal 0."""
    return [0.0 if job.goal is None else job.goal.worth + job.goal.cost for job in problem.jobs]
