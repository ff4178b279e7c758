"""CP-SAT for small fused pipelines: intervals on machines, a hint, and a bound."""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, lcm
from typing import TYPE_CHECKING

from planner.solvers.backends.mathopt import version

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    from planner.solvers.schedules.fused_pipelines import FusedProblem, FusedSchedule

MAX_UNITS = 10**7  # horizon in units of time; finer durations are not given to a solver of whole numbers


@dataclass(frozen=True, slots=True)
class Improved:
    """Task types in order by machine, what was proven, and why the search ended."""

    order: tuple[tuple[int, ...], ...]
    bound: float
    stop_reason: str
    solver: str


def improve(problem: "FusedProblem", hint: "FusedSchedule", bound: float, time_limit_s: float, seed: int) -> Improved:
    """The formulation of `planner.solvers.schedules.fused_pipelines` with the schedule as a hint; hands it back where
    CP-SAT does not apply (no time left, or durations without a common unit)."""
    name = f"ortools-cpsat {version()}"
    unit = _unit(problem, hint)
    if time_limit_s <= 0.5 or unit is None:
        return Improved(hint.order, bound, "time_limit" if unit else "numerical", name)
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    start = _build(problem, model, unit, round(hint.makespan * unit), ceil(bound * unit - 1e-6))
    _hint(model, problem, hint, start, unit)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = time_limit_s
    solver.parameters.num_workers = 2
    solver.parameters.random_seed = seed
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Improved(hint.order, bound, "time_limit", name)
    begun = {task: solver.value(variable) for task, variable in start.items()}
    order = tuple(
        tuple(t for t, _ in sorted((k for k in begun if problem.machine_T[k[0]] == machine), key=begun.__getitem__))
        for machine in range(problem.num_machines)
    )
    stop = "finished" if status == cp_model.OPTIMAL else "time_limit"
    return Improved(order, max(bound, solver.best_objective_bound / unit), stop, name)


def _unit(problem: "FusedProblem", hint: "FusedSchedule") -> int | None:
    """How many units of time one is, so that all durations and the makespan are whole; None where that is too fine."""
    denominators = [Fraction(repr(float(d))).denominator for d in problem.duration_T]
    unit = lcm(*denominators)
    return unit if unit * hint.makespan <= MAX_UNITS else None


def _build(
    problem: "FusedProblem", model: "cp_model.CpModel", unit: int, horizon: int, least: int
) -> "dict[tuple[int, int], cp_model.IntVar]":
    """Starts by task type and job; numbers as in the formulation."""
    span = [round(float(d) * unit) for d in problem.duration_T]
    tasks = [(t, j) for t in range(len(span)) for j in range(int(problem.count_T[t]))]
    x = {(t, j): model.new_int_var(0, horizon - span[t], f"x[{t},{j}]") for t, j in tasks}
    makespan = model.new_int_var(least, horizon, "T")
    for t, j in tasks:
        before = int(problem.before_T[t])
        if before >= 0:
            model.add(x[t, j] >= x[before, j] + span[before])  # C1
        if j:
            model.add(x[t, j] >= x[t, j - 1] + span[t])  # equal jobs in order
        model.add(x[t, j] + span[t] <= makespan)  # C4
    for machine in range(problem.num_machines):
        here = [(t, j) for t, j in tasks if problem.machine_T[t] == machine]
        model.add_no_overlap([model.new_fixed_size_interval_var(x[t, j], span[t], "") for t, j in here])  # C2
        _capacity(problem, model, x, machine, span)
    model.minimize(makespan)
    return x


def _capacity(
    problem: "FusedProblem",
    model: "cp_model.CpModel",
    x: "dict[tuple[int, int], cp_model.IntVar]",
    machine: int,
    span: list[int],
) -> None:
    """(C3): jobs of a pipeline hold their part from the start of F to the end of B; parts in whole numbers, exactly."""
    if problem.capacity is None:
        return
    held = [Fraction(repr(float(h))) for h in problem.held_T]
    room = Fraction(repr(float(problem.capacity_M[machine])))
    scale = lcm(room.denominator, *(h.denominator for h in held))
    intervals, demands = [], []
    for t, j in x:
        if problem.machine_T[t] == machine and problem.forward_T[t] and held[t] > 0:
            partner = int(problem.partner_T[t])
            size = model.new_int_var(span[t] + span[partner], 10**9, "")
            intervals.append(model.new_interval_var(x[t, j], size, x[partner, j] + span[partner], ""))
            demands.append(int(held[t] * scale))
    if intervals:
        model.add_cumulative(intervals, demands, int(room * scale))


def _hint(
    model: "cp_model.CpModel",
    problem: "FusedProblem",
    hint: "FusedSchedule",
    start: "dict[tuple[int, int], cp_model.IntVar]",
    unit: int,
) -> None:
    seen = [0] * len(problem.machine_T)
    for types, starts in zip(hint.order, hint.starts, strict=True):
        for t, begin in zip(types, starts, strict=True):
            model.add_hint(start[t, seen[t]], round(begin * unit))
            seen[t] += 1
