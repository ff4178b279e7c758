"""CP-SAT for transfers and computes in a buffer; numbers as in `planner.solvers.workflow.transfer_order`."""

import math
from dataclasses import dataclass
from itertools import combinations

from planner.solvers.backends.cpsat import timed_solver
from planner.solvers.backends.mathopt import version
from planner.solvers.backends.whole_units import units_per_one

MAX_HORIZON = 2**40  # units


@dataclass(frozen=True, slots=True)
class BufferedRows:
    """Seconds of transfer and compute and bytes of each cluster, and bytes of the buffer."""

    transfer_s_I: tuple[float, ...]
    compute_s_I: tuple[float, ...]
    bytes_I: tuple[float, ...]
    buffer_bytes: float


@dataclass(frozen=True, slots=True)
class Ordered:
    """An order, or None where none was reached; what no makespan is below [s], and why the search ended."""

    order: tuple[int, ...] | None
    bound_s: float
    stop_reason: str
    solver: str


def improve(rows: BufferedRows, bound_s: float, most_s: float, *, time_limit_s: float, seed: int) -> Ordered:
    """The best order whose makespan is at most `most_s`; None where times or bytes have no common unit."""
    from ortools.sat.python import cp_model

    name = f"ortools-cpsat {version()}"
    units = units_per_one([*rows.transfer_s_I, *rows.compute_s_I])
    parts = units_per_one([*rows.bytes_I, rows.buffer_bytes])
    if units is None or parts is None or most_s * units > MAX_HORIZON:
        return Ordered(None, bound_s, "numerical", name)
    most = round(most_s * units)
    transfer_I = [round(value * units) for value in rows.transfer_s_I]
    compute_I = [round(value * units) for value in rows.compute_s_I]
    clusters = range(len(transfer_I))
    model = cp_model.CpModel()
    u = [model.new_int_var(0, most, f"u[{i}]") for i in clusters]
    v = [model.new_int_var(0, most, f"v[{i}]") for i in clusters]
    longest = model.new_int_var(math.ceil(bound_s * units - 1e-6), most, "makespan")
    held = []
    for i in clusters:
        model.add(v[i] >= u[i] + transfer_I[i])  # C2
        model.add(longest >= v[i] + compute_I[i])
        size = model.new_int_var(0, most, "")
        held.append(model.new_interval_var(u[i], size, v[i] + compute_I[i], ""))
    model.add_no_overlap([model.new_fixed_size_interval_var(u[i], transfer_I[i], "") for i in clusters])
    model.add_no_overlap([model.new_fixed_size_interval_var(v[i], compute_I[i], "") for i in clusters])
    for i, j in combinations(clusters, 2):  # C1, the same order
        first = model.new_bool_var(f"first[{i},{j}]")
        for before, after, literal in ((i, j, first), (j, i, first.negated())):
            model.add(u[after] >= u[before] + transfer_I[before]).only_enforce_if(literal)
            model.add(v[after] >= v[before] + compute_I[before]).only_enforce_if(literal)
    model.add_cumulative(held, [round(size * parts) for size in rows.bytes_I], round(rows.buffer_bytes * parts))
    model.minimize(longest)
    solver = timed_solver(time_limit_s, seed)
    status = solver.solve(model)
    reached = max(bound_s, solver.best_objective_bound / units)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Ordered(None, reached, "time_limit", name)
    best = tuple(sorted(clusters, key=lambda i: (solver.value(u[i]), solver.value(v[i]))))
    return Ordered(best, reached, "finished" if status == cp_model.OPTIMAL else "time_limit", name)
