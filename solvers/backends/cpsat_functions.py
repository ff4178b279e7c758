"""CP-SAT for the functions of stages under one grouping; numbers as in `planner.solvers.workflow.server_groups`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

UNITS = 10**8  # of time in the longest path of one function each; times are rounded down to them


@dataclass(frozen=True, slots=True)
class Grouping:
    """One grouping: parents, and times [s] with 1, 2, .. functions, of each stage; slots of servers; the groups."""

    parents_S: tuple[tuple[int, ...], ...]
    time_s_SD: tuple[tuple[float, ...], ...]
    slots_V: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Functions:
    """Functions and servers, or None where none keep within what was asked; what no answer is below [s]."""

    functions_S: tuple[int, ...] | None
    server_G: tuple[int, ...]
    bound_s: float


def functions_within(grouping: Grouping, most_s: float, *, time_limit_s: float) -> Functions:
    """The best functions whose longest path is at most `most_s` (may be infinite)."""
    from ortools.sat.python import cp_model

    unit_s = max(sum(times[0] for times in grouping.time_s_SD), 1e-9) / UNITS
    model = cp_model.CpModel()
    x = [
        {d: model.new_bool_var(f"d[{s},{d}]") for d in range(1, len(times) + 1)}
        for s, times in enumerate(grouping.time_s_SD)
    ]
    for literals in x:
        model.add_exactly_one(literals.values())
    functions = [sum(d * literal for d, literal in literals.items()) for literals in x]
    longest = model.new_int_var(0, UNITS if math.isinf(most_s) else math.floor(most_s / unit_s), "longest")
    ends: list[cp_model.IntVar] = []
    for s, parents in enumerate(grouping.parents_S):
        end = model.new_int_var(0, UNITS, f"end[{s}]")
        times = grouping.time_s_SD[s]
        taken = sum(math.floor(times[d - 1] / unit_s) * literal for d, literal in x[s].items())
        model.add(end >= taken)
        for parent in parents:
            model.add(end >= ends[parent] + taken)
        model.add(end <= longest)
        ends.append(end)
    y = _on_servers(model, grouping, functions)
    model.minimize(longest)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = time_limit_s
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return Functions(None, (), math.inf)
    bound_s = solver.best_objective_bound * unit_s
    if status == cp_model.UNKNOWN:
        return Functions(None, (), bound_s)
    chosen = tuple(next(d for d, literal in row.items() if solver.value(literal)) for row in x)
    servers = tuple(next(v for v, literal in enumerate(row) if solver.value(literal)) for row in y)
    return Functions(chosen, servers, bound_s)


def _on_servers(
    model: "cp_model.CpModel", grouping: Grouping, functions: "Sequence[cp_model.LinearExprT]"
) -> "list[list[cp_model.IntVar]]":
    """(C2) and (C3)."""
    y = [[model.new_bool_var(f"y[{g},{v}]") for v in range(len(grouping.slots_V))] for g in range(len(grouping.groups))]
    here: list[list[cp_model.IntVar]] = [[] for _ in grouping.slots_V]
    for g, members in enumerate(grouping.groups):
        model.add_exactly_one(y[g])
        size = sum(functions[s] for s in members)
        parts = [model.new_int_var(0, slots, f"z[{g},{v}]") for v, slots in enumerate(grouping.slots_V)]
        model.add(sum(parts) == size)
        for v, part in enumerate(parts):
            model.add(part <= grouping.slots_V[v] * y[g][v])
            here[v].append(part)
    for v, slots in enumerate(grouping.slots_V):
        model.add(sum(here[v]) <= slots)
    model.add(sum(functions) <= sum(grouping.slots_V))
    return y
