"""The day of most worth (`split`), and a bound on all days.

Where no job has a goal and the joint program over all jobs is small, it is exact (`exchange`). Otherwise column
generation over the days of single jobs gives prices and a bound (`columns`), and exchanges between three jobs a
day. Joint programs over all jobs at several worths of progress give better bounds and more days (`joint`); labels
over them count progress as it is, and close most of what is left (`labels`). Elsewhere the best day over the rows
of these days makes as much of every target as is paid (`rows`). Where joint programs are too large, they leave out
states that cannot lead to a better day (`bounded`). An integer program over the flows of single jobs closes what is
left as far as its limits let it, with the steps alone that a better day can take by their reduced worth.
Of many jobs the best day over the days of single jobs that the relaxation met (`chosen`) is exchanged further.
Of days that are worth as much, jobs with a goal have the one of fewest node hours (`frugal`).
"""

import math
import time
from collections.abc import Sequence

from planner.solvers.backends.model import Expr, LinearModel, total
from planner.solvers.backends.solve import solve
from planner.solvers.result import SolveResult, Status
from planner.solvers.schedules.days.bounded import bounded
from planner.solvers.schedules.days.chosen import best_chosen
from planner.solvers.schedules.days.columns import relaxed
from planner.solvers.schedules.days.exchange import affordable, exchanged, joint
from planner.solvers.schedules.days.frugal import frugal
from planner.solvers.schedules.days.joint import jointly, most_of_units
from planner.solvers.schedules.days.labels import affordable_labels, labelled
from planner.solvers.schedules.days.rows import recombined
from planner.solvers.schedules.days.split import Day, DayJob, DaySplit, Steps

SOLVER = "days of single jobs, joint programs and flows"
DUST = 1e-9  # of the worth of a day
GIVEN = 1e-3  # of it, that each job may lose for fewer node hours
WIDTHS = (2_000, 20_000)  # states of an hour in joint programs over all jobs, or labels, in turn
ROWS_S = (4.0, 12.0)  # for days of rows of other days: the second time where the first leaves a wide gap
WIDE = 0.01  # of the worth
MANY = 12  # jobs: of more, days of single jobs alone are put together
CHOSEN_S = 20.0  # for each of the integer programs of many jobs, and for exchanges behind it
LEAST_S = 1.0  # for the first of them, however little time is left
MOST_CHOSEN = 3  # of them
CLOSE = 1e-5  # of the worth: exchanges that bring no more give no new days
MOST_STEPS = 5_000  # of single jobs that the integer program takes


def split_day(problem: DaySplit, *, time_limit_s: float | None = None, gap: float = DUST) -> SolveResult[Day]:
    """The day of most worth and a bound on all days; OPTIMAL where they meet within `gap`.

    The limit is on the integer program alone, which comes last; of more than MANY jobs it is on all.
    """
    started_s = time.perf_counter()
    if len(problem.jobs) > MANY:
        return _of_many(problem, time_limit_s, gap)
    everyone = range(len(problem.jobs))
    if not any(job.goal for job in problem.jobs) and affordable(problem, everyone):
        day = joint(problem, _idle(problem), everyone, ())
        worth = problem.worth(day)
        took_s = time.perf_counter() - started_s
        return SolveResult(Status.OPTIMAL, "finished", day, worth, worth, took_s, SOLVER)
    relaxation, reason = relaxed(problem), "finished"
    day = exchanged(problem, _idle(problem), relaxation.units)
    worth, bound = problem.worth(day), relaxation.bound
    whole = affordable(problem, everyone)
    if whole or any(job.goal for job in problem.jobs):
        priced = jointly(relaxation, day, gap, whole=whole)
        day = max([day, *priced.days[::-1]], key=problem.worth)
        day, bound = _counted(problem, day, min(bound, priced.bound), priced.prices, gap)
        worth = problem.worth(day)
        day = _joined(problem, [day, *priced.days[::-1]], relaxation.units, gap * max(abs(worth), 1.0), bound)
        worth = problem.worth(day)
    for width in () if whole else WIDTHS[:1] if any(job.goal for job in problem.jobs) else WIDTHS:
        if bound - worth <= gap * max(abs(worth), 1.0):
            break
        other, proven = bounded(relaxation, worth, width)
        bound = min(bound, proven)
        if other is not None:
            day = max(day, exchanged(problem, other, relaxation.units), key=problem.worth)
            worth = problem.worth(day)
    if bound - worth > gap * max(abs(worth), 1.0):
        better, proven, reason = _closed(problem, relaxation.steps_above(worth), time_limit_s, gap)
        day = day if better is None else max(day, better, key=problem.worth)
        worth = problem.worth(day)
        bound = min(bound, max(proven, worth))
    return _result(problem, day, bound, reason, gap, started_s)


def _of_many(problem: DaySplit, time_limit_s: float | None, gap: float) -> SolveResult[Day]:
    """The best day over days of single jobs, exchanged until it is worth no more, and the bound of the relaxation."""
    started_s = time.perf_counter()
    deadline = math.inf if time_limit_s is None else started_s + time_limit_s
    relaxation = relaxed(problem, deadline)
    day, bound, reason = _idle(problem), relaxation.bound, "step_limit"
    for k, unit in enumerate(relaxation.units):  # a day at hand however little time is left
        day = max(day, joint(problem, day, (k,), (unit,)), key=problem.worth)
    relaxation.keep(day)
    for number in range(MOST_CHOSEN):
        worth = problem.worth(day)
        left_s = min(deadline - time.perf_counter(), CHOSEN_S)
        if bound - worth <= gap * max(abs(worth), 1.0) or (number and left_s <= 0.0):
            break
        left_s = max(left_s, LEAST_S)
        chosen = best_chosen(relaxation, day, left_s)
        until = min(deadline, time.perf_counter() + CHOSEN_S)
        day = max(day, exchanged(problem, chosen, relaxation.units, until), key=problem.worth)
        if problem.worth(day) <= problem.worth(chosen) + CLOSE * max(abs(worth), 1.0):
            break
        relaxation.keep(day)
    worth = problem.worth(day)
    if time.perf_counter() < deadline and bound - worth > gap * max(abs(worth), 1.0):
        left_s = min(deadline - time.perf_counter(), CHOSEN_S)
        better, proven, reason = _closed(problem, relaxation.steps_above(worth), left_s, gap)
        day = day if better is None else max(day, better, key=problem.worth)
        bound = min(bound, max(proven, problem.worth(day)))
    reason = "time_limit" if time.perf_counter() >= deadline else reason
    return _result(problem, day, bound, reason, gap, started_s)


def _result(problem: DaySplit, day: Day, bound: float, reason: str, gap: float, started_s: float) -> SolveResult[Day]:
    """The day with the fewest node hours that are worth as much; the search finished where it meets its bound."""
    day = frugal(problem, day, GIVEN * DUST * max(abs(problem.worth(day)), 1.0))
    worth = problem.worth(day)
    proven = bound - worth <= gap * max(abs(worth), 1.0)
    status = Status.OPTIMAL if proven else Status.FEASIBLE
    took_s = time.perf_counter() - started_s
    return SolveResult(status, "finished" if proven else reason, day, worth, max(bound, worth), took_s, SOLVER)


def _counted(problem: DaySplit, day: Day, bound: float, prices: tuple[float, ...], gap: float) -> tuple[Day, float]:
    """The best day with progress counted as it is, of as many labels as it takes, and the bound."""
    both = (prices, tuple(most_of_units(problem)))
    for width in WIDTHS if affordable_labels(problem, len(both)) else ():
        worth = problem.worth(day)
        if bound - worth <= gap * max(abs(worth), 1.0):
            break
        other, proven = labelled(problem, worth, both, width)
        day, bound = day if other is None else max(day, other, key=problem.worth), min(bound, proven)
    return day, bound


def _joined(problem: DaySplit, days: list[Day], units: Sequence[float], enough: float, bound: float) -> Day:
    """The best of these days, and of those that go over from one to another."""
    best = max(days, key=problem.worth)
    if bound - problem.worth(best) <= enough:
        return best
    for limit_s in ROWS_S:
        other = recombined(problem, [best, *days], limit_s)
        if other is not None and problem.worth(other) > problem.worth(best):
            best = max(other, exchanged(problem, other, units), key=problem.worth)
        if bound - problem.worth(best) <= WIDE * abs(bound):
            break
    return best


def _idle(problem: DaySplit) -> Day:
    """All jobs with few nodes, all day."""
    fewest = problem.fewest()
    assert fewest is not None, "the problem has room for the fewest nodes of all jobs"
    return tuple((index,) * problem.hours for index in fewest)


def _closed(problem: DaySplit, steps: Steps, time_limit_s: float | None, gap: float) -> tuple[Day | None, float, str]:
    """The best day over these steps, and the bound on them: flows of single jobs from hour to hour, under (C1)."""
    if sum(map(len, steps)) > MOST_STEPS:
        return None, math.inf, "step_limit"
    model = LinearModel()
    flows, worths = [], []
    loads: dict[tuple[int, int], list[Expr]] = {}
    for k, (job, own) in enumerate(zip(problem.jobs, steps, strict=True)):
        flow = {step: model.binary(f"y[{k},{','.join(map(str, step))}]") for step in own}
        flows.append(flow)
        worths += [_step_worth(job, step) * y for step, y in flow.items()]
        for (t, _, b), y in flow.items():
            for p, nodes in enumerate(job.counts[b]):
                loads.setdefault((t, p), []).append(float(nodes) * y)
        _conserve(model, k, flow, problem.hours)
        if job.goal is not None:
            done = model.continuous(f"done[{k}]", 0.0, job.goal.target)
            made = total(_step_progress(job, step) * y for step, y in flow.items())
            model.add(done <= made, f"goal[{k}]")
            worths += [(job.goal.worth + job.goal.cost) * done, Expr({}, -job.goal.cost * job.goal.target)]
    for (t, p), load in loads.items():
        model.add(total(load) <= float(problem.nodes[p]), f"C1[{t},{p}]")
    model.maximise(total(worths))
    result = solve(model, time_limit_s=time_limit_s, gap=gap)
    bound = math.inf if result.bound is None else result.bound
    if result.status is Status.INFEASIBLE:
        return None, -math.inf, result.stop_reason
    if result.solution is None:
        return None, bound, result.stop_reason
    value = result.solution.value
    return (
        tuple(_path([step for step, y in flow.items() if value(y) > 0.5]) for flow in flows),
        bound,
        result.stop_reason,
    )


def _conserve(model: LinearModel, k: int, flow: dict[tuple[int, int, int], Expr], hours: int) -> None:
    """One step in the first hour; what comes to a number of nodes goes on from it."""
    model.add(total(y for (t, _, _), y in flow.items() if t == 0) == 1.0, f"start[{k}]")
    ends: dict[tuple[int, int], list[Expr]] = {}
    goes: dict[tuple[int, int], list[Expr]] = {}
    for (t, a, b), y in flow.items():
        ends.setdefault((t, b), []).append(y)
        if t:
            goes.setdefault((t - 1, a), []).append(y)
    for t, a in sorted({*ends, *goes}):
        if t < hours - 1:
            model.add(total(ends.get((t, a), [])) == total(goes.get((t, a), [])), f"flow[{k},{t},{a}]")


def _step_worth(job: DayJob, step: tuple[int, int, int]) -> float:
    t, a, b = step
    return float(job.first_A[b] if t == 0 else job.later_TAA[t - 1, a, b])


def _step_progress(job: DayJob, step: tuple[int, int, int]) -> float:
    t, a, b = step
    return float(job.progress_first_A[b] if t == 0 else job.progress_in(t)[a, b])


def _path(steps: Sequence[tuple[int, int, int]]) -> tuple[int, ...]:
    return tuple(b for _, _, b in sorted(steps))
