"""CP-SAT for small flow shops: intervals on machines, a hint, and a bound.

The formulation is that of `planner.solvers.schedules.fused_pipelines`.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, isfinite, lcm
from typing import TYPE_CHECKING

from planner.solvers.backends.cpsat import timed_solver
from planner.solvers.backends.mathopt import version
from planner.solvers.flow_shop import FlowShop, ShopSchedule

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

MAX_UNITS = 10**7  # horizon in units of time; finer durations are not given to a solver of whole numbers


@dataclass(frozen=True, slots=True)
class Improved:
    """Task types in order by machine, what was proven, and why the search ended."""

    order: tuple[tuple[int, ...], ...]
    bound: float
    stop_reason: str
    solver: str


def improve(
    shop: FlowShop, hint: ShopSchedule, bound: float, *, time_limit_s: float, seed: int, threads: int
) -> Improved:
    """The best order from the schedule given as a hint, which comes back where CP-SAT does not apply.

    That is with no time left, or where durations have no common unit.
    """
    name = f"ortools-cpsat {version()}"
    unit = _unit(shop, hint)
    if time_limit_s <= 0.5 or unit is None:
        return Improved(hint.order, bound, "time_limit" if unit else "numerical", name)
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    start = _build(shop, model, unit, round(hint.makespan * unit), ceil(bound * unit - 1e-6))
    _hint(model, shop, hint, start, unit)
    solver = timed_solver(time_limit_s, seed, threads)
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Improved(hint.order, bound, "time_limit", name)
    begun = {task: solver.value(variable) for task, variable in start.items()}
    order = tuple(
        tuple(t for t, _ in sorted((k for k in begun if shop.machine_T[k[0]] == machine), key=begun.__getitem__))
        for machine in range(shop.num_machines)
    )
    stop = "finished" if status == cp_model.OPTIMAL else "time_limit"
    return Improved(order, max(bound, solver.best_objective_bound / unit), stop, name)


def _unit(shop: FlowShop, hint: ShopSchedule) -> int | None:
    """How many units of time one is, so that all durations and the makespan are whole; None where that is too fine."""
    denominators = [Fraction(repr(float(d))).denominator for d in shop.duration_T]
    unit = lcm(*denominators)
    return unit if unit * hint.makespan <= MAX_UNITS else None


def _build(
    shop: FlowShop, model: "cp_model.CpModel", unit: int, horizon: int, least: int
) -> "dict[tuple[int, int], cp_model.IntVar]":
    """Starts by task type and job; numbers as in the formulation."""
    span = [round(float(d) * unit) for d in shop.duration_T]
    tasks = [(t, j) for t in range(len(span)) for j in range(int(shop.count_T[t]))]
    x = {(t, j): model.new_int_var(0, horizon - span[t], f"x[{t},{j}]") for t, j in tasks}
    makespan = model.new_int_var(least, horizon, "T")
    for t, j in tasks:
        before = int(shop.before_T[t])
        if before >= 0:
            model.add(x[t, j] >= x[before, j] + span[before])  # C1
        if j:
            model.add(x[t, j] >= x[t, j - 1] + span[t])  # equal jobs in order
        model.add(x[t, j] + span[t] <= makespan)  # C4
    for machine in range(shop.num_machines):
        here = [(t, j) for t, j in tasks if shop.machine_T[t] == machine]
        model.add_no_overlap([model.new_fixed_size_interval_var(x[t, j], span[t], "") for t, j in here])  # C2
        _capacity(shop, model, x, machine, span)
    model.minimize(makespan)
    return x


def _capacity(
    shop: FlowShop,
    model: "cp_model.CpModel",
    x: "dict[tuple[int, int], cp_model.IntVar]",
    machine: int,
    span: list[int],
) -> None:
    """(C3): jobs of a pipeline hold their part from the start of F to the end of B; parts in whole numbers, exactly."""
    if not isfinite(shop.capacity_M[machine]):
        return
    resident = [Fraction(repr(float(h))) for h in shop.resident_T]
    room = Fraction(repr(float(shop.capacity_M[machine])))
    scale = lcm(room.denominator, *(h.denominator for h in resident))
    intervals, demands = [], []
    for t, j in x:
        if shop.machine_T[t] == machine and shop.forward_T[t] and resident[t] > 0:
            partner = int(shop.partner_T[t])
            size = model.new_int_var(span[t] + span[partner], 10**9, "")
            intervals.append(model.new_interval_var(x[t, j], size, x[partner, j] + span[partner], ""))
            demands.append(int(resident[t] * scale))
    if intervals:
        model.add_cumulative(intervals, demands, int(room * scale))


def _hint(
    model: "cp_model.CpModel",
    shop: FlowShop,
    hint: ShopSchedule,
    start: "dict[tuple[int, int], cp_model.IntVar]",
    unit: int,
) -> None:
    seen = [0] * len(shop.machine_T)
    for types, starts in zip(hint.order, hint.starts, strict=True):
        for t, begin in zip(types, starts, strict=True):
            model.add_hint(start[t, seen[t]], round(begin * unit))
            seen[t] += 1
