"""Rows chosen from bins so that they add up to a target exactly, by CP-SAT."""

from collections.abc import Sequence

import numpy as np

from planner.arrays import Ints
from planner.errors import PlannerError
from planner.solvers.backends.mathopt import version
from planner.solvers.result import Status


def choose_rows(
    counts_CS: Ints, bin_C: Ints, number_B: Sequence[int], target_S: Ints, *, deterministic_s: float, seed: int = 0
) -> tuple[Status, Ints, str]:
    """How often every row [C] is taken, so many of each bin in all, adding up to the target; the status, the solver.

    OPTIMAL with a choice, INFEASIBLE where there is none, UNKNOWN where the effort ran out. One thread and
    deterministic time, so that the same rows have the same answer.
    """
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    times = [model.new_int_var(0, int(number_B[b]), f"x{c}") for c, b in enumerate(bin_C.tolist())]
    for b, number in enumerate(number_B):
        model.add(sum(times[c] for c in np.flatnonzero(bin_C == b)) == int(number))
    for s, target in enumerate(target_S.tolist()):
        rows = np.flatnonzero(counts_CS[:, s])
        model.add(sum(times[c] * int(counts_CS[c, s]) for c in rows) == target)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed
    solver.parameters.linearization_level = 2
    solver.parameters.max_deterministic_time = deterministic_s
    status = solver.solve(model)
    name = f"ortools-cpsat {version()}"
    if status == cp_model.MODEL_INVALID:
        raise PlannerError("CP-SAT rejects the model", where="solver", hint="give rows of counts of 0 or more")
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Status.OPTIMAL, np.array([solver.value(x) for x in times], np.int64), name
    none = np.zeros(len(times), np.int64)
    return (Status.INFEASIBLE if status == cp_model.INFEASIBLE else Status.UNKNOWN), none, name
