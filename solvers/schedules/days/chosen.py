"""The day of most worth over days of single jobs that are at hand: each job has one of its own.

The relaxation of `columns` with x_kj in {0,1}. Of every job the days are taken that fall least short of its best one at
the prices of the relaxation; with many jobs few of them share their days there, so that little is lost.
"""

import numpy as np

from planner.solvers.backends.solve import solve
from planner.solvers.schedules.days.columns import Column, Relaxation, program_of
from planner.solvers.schedules.days.split import Day

MOST_DAYS = 24  # of a job
GAP = 1e-4  # of the worth: no search beyond it


def best_chosen(relaxation: Relaxation, day: Day, time_limit_s: float) -> Day:
    """The best day met over the days made; `day` where none was."""
    made = [_near(relaxation, k, day[k]) for k in range(len(day))]
    model = program_of(relaxation.problem, made, whole=True)
    solution = solve(model, time_limit_s=time_limit_s, gap=GAP).solution
    if solution is None:
        return day
    return tuple(
        next(path for j, path in enumerate(days) if solution[f"x[{k},{j}]"] > 0.5) for k, days in enumerate(made)
    )


def _near(relaxation: Relaxation, k: int, day: tuple[int, ...]) -> dict[tuple[int, ...], Column]:
    """The days of a job that fall least short, and the one at hand."""
    days, unit, price_H = relaxation.made[k], relaxation.units[k], relaxation.prices.hour_TP.ravel()
    priced = {
        path: day.worth + unit * day.progress - float(price_H @ np.array(day.nodes)) for path, day in days.items()
    }
    kept = sorted(days, key=lambda path: -priced[path])[:MOST_DAYS]
    return {path: days[path] for path in dict.fromkeys([*kept, day])}
