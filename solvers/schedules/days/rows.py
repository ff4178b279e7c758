"""The best day over rows of days that are at hand: in every hour the nodes of all jobs of one of them.

Days at several worths of progress make too much of one target and too little of another; days that go over from one to
another make as much as is paid. (C1) of `split` holds in each row.

Sets        r in R_t rows of hour t: numbers of nodes of all jobs
Parameters  v_trs worth without goals of row s after row r, p_ktrs progress of jobs with a goal
Variables   y_trs in {0,1};  d_k in [0, G_k] progress that is paid
Maximise    sum v_trs y_trs + sum_k (u_k + f_k) d_k - f_k G_k
(C1) sum_s y_1s = 1 in the first hour
(C2) sum_r y_trs = sum_q y_t+1,sq        for s in R_t
(C3) d_k <= sum p_ktrs y_trs             for jobs with a goal
"""

from collections.abc import Sequence
from itertools import pairwise

from planner.solvers.backends.model import Expr, LinearModel, total
from planner.solvers.backends.solve import solve
from planner.solvers.schedules.days.split import Day, DaySplit

MOST_STEPS = 6_000
GAP = 1e-4  # of the worth: no search beyond it

Row = tuple[int, ...]
"""Of every job the index of its number of nodes. [K]"""

Flows = list[dict[tuple[Row, Row], Expr]]
"""Steps by hour; those of the first hour come from the empty row. [T]"""


def recombined(problem: DaySplit, days: Sequence[Day], time_limit_s: float) -> Day | None:
    """The best day met over the rows of these days, of which the first count most; None where none was."""
    rows_T = _rows(problem, days)
    model = LinearModel()
    flow_T = _flows(model, rows_T)
    worths = [_worth(problem, t, *step) * y for t, flow in enumerate(flow_T) for step, y in flow.items()]
    for k, job in enumerate(problem.jobs):
        if (goal := job.goal) is not None:
            done = model.continuous(f"done[{k}]", 0.0, goal.target)
            made = (_progress(problem, k, t, *step) * y for t, flow in enumerate(flow_T) for step, y in flow.items())
            model.add(done <= total(made), f"C3[{k}]")
            worths.append((goal.worth + goal.cost) * done)
    model.maximise(total(worths))
    solution = solve(model, time_limit_s=time_limit_s, gap=GAP).solution
    if solution is None:
        return None
    chosen = [next(s for (_, s), y in flow.items() if solution.value(y) > 0.5) for flow in flow_T]
    return tuple(zip(*chosen, strict=True))


def _rows(problem: DaySplit, days: Sequence[Day]) -> list[list[Row]]:
    """Distinct rows by hour, of as many days as leave few enough steps."""
    rows_T: list[dict[Row, None]] = [{} for _ in range(problem.hours)]
    for day in days:
        wider = [{**rows, row: None} for rows, row in zip(rows_T, zip(*day, strict=True), strict=True)]
        steps = sum(len(a) * len(b) for a, b in pairwise(wider))
        if steps > MOST_STEPS:
            break
        rows_T = wider
    return [list(rows) for rows in rows_T]


def _flows(model: LinearModel, rows_T: list[list[Row]]) -> Flows:
    """(C1) and (C2)."""
    before_T: list[list[Row]] = [[()], *rows_T[:-1]]
    flow_T: Flows = [
        {(r, s): model.binary(f"y[{t},{i},{j}]") for i, r in enumerate(before) for j, s in enumerate(rows)}
        for t, (before, rows) in enumerate(zip(before_T, rows_T, strict=True))
    ]
    model.add(total(flow_T[0].values()) == 1.0, "C1")
    for t, rows in enumerate(rows_T[:-1]):
        for i, row in enumerate(rows):
            comes = total(y for (_, s), y in flow_T[t].items() if s == row)
            goes = total(y for (r, _), y in flow_T[t + 1].items() if r == row)
            model.add(comes == goes, f"C2[{t},{i}]")
    return flow_T


def _worth(problem: DaySplit, t: int, before: Row, row: Row) -> float:
    if t == 0:
        return sum(float(job.first_A[b]) for job, b in zip(problem.jobs, row, strict=True))
    steps = zip(problem.jobs, before, row, strict=True)
    return sum(float(job.later_TAA[t - 1, a, b]) for job, a, b in steps)


def _progress(problem: DaySplit, k: int, t: int, before: Row, row: Row) -> float:
    job = problem.jobs[k]
    return float(job.progress_first_A[row[k]] if t == 0 else job.progress_in(t)[before[k], row[k]])
