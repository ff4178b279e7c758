"""The bound of the joint program over all jobs of a day at the best worths of progress, and the best of its days.

(C1) holds as it stands there, and goals are priced: for any m_k in [0, u_k + f_k] no day is worth more than
    max over days of (worth without goals + sum_k m_k P_k) + sum_k (u_k + f_k - m_k) G_k - f_k G_k,
convex in m with P_k - G_k as a subgradient. One price after the other is halved in on, the others as they are.
"""

from dataclasses import dataclass

from planner.solvers.schedules.day_exchange import joint
from planner.solvers.schedules.day_split import Day, DaySplit

HALVINGS = 12
ROUNDS = 3  # over all goals
CLOSE = 1e-9  # of the worth: no more rounds


@dataclass(frozen=True, slots=True)
class JointBound:
    """The least bound over all prices tried, and the best day met on the way."""

    day: Day
    bound: float


def jointly(problem: DaySplit, day: Day, units: tuple[float, ...], gap: float = CLOSE) -> JointBound:
    """The bound from these worths of progress on; `day` is one to begin with."""
    prices = [min(max(unit, 0.0), _most(problem, k)) for k, unit in enumerate(units)]
    best, bound, _ = _at(problem, day, prices)
    bounds, days = [bound], [day, best]
    goals = [k for k, job in enumerate(problem.jobs) if job.goal is not None]
    for _ in range(ROUNDS if len(goals) > 1 else 1):
        before = min(bounds)
        for k in goals:
            low, high = 0.0, _most(problem, k)
            for _ in range(HALVINGS):
                prices[k] = (low + high) / 2.0
                other, bound, progress = _at(problem, day, prices)
                bounds.append(bound)
                days.append(other)
                goal = problem.jobs[k].goal
                assert goal is not None
                low, high = (prices[k], high) if progress[k] < goal.target else (low, prices[k])
        worth = max(map(problem.worth, days))
        if before - min(bounds) <= gap * abs(worth) or min(bounds) - worth <= gap * abs(worth):
            break
    return JointBound(max(days, key=problem.worth), min(bounds))


def _at(problem: DaySplit, day: Day, prices: list[float]) -> tuple[Day, float, list[float]]:
    """The best day at these prices of progress, the bound that it proves, and its progress by job."""
    members = range(len(problem.jobs))
    best = joint(problem, day, members, tuple(prices))
    bound, progress = 0.0, []
    for k, (job, path) in enumerate(zip(problem.jobs, best, strict=True)):
        done = job.progress(path) if job.goal is not None else 0.0
        progress.append(done)
        bound += job.worth(path)
        if job.goal is None:
            continue
        goal = job.goal
        bound -= goal.worth * min(done, goal.target) - goal.cost * max(goal.target - done, 0.0)
        bound += prices[k] * done + (goal.worth + goal.cost - prices[k]) * goal.target - goal.cost * goal.target
    return best, bound, progress


def _most(problem: DaySplit, k: int) -> float:
    """All that a unit below the target is worth."""
    goal = problem.jobs[k].goal
    return 0.0 if goal is None else goal.worth + goal.cost
