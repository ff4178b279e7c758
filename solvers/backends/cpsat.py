"""OR-Tools CP-SAT for models whose variables are all integer: it reports progress and keeps its answer on Ctrl-C.

CP-SAT knows integer coefficients alone. Coefficients are read as the decimals they print as and scaled exactly when
a common denominator below 1e9 exists; otherwise they are rounded to 40 bits, and then no bound or proof is claimed.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from planner.errors import PlannerError
from planner.solvers.backends.mathopt import version
from planner.solvers.backends.model import INFINITY, LinearModel
from planner.solvers.backends.outcome import BackendLimits, BackendOutcome
from planner.solvers.result import Status

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

MAX_DENOMINATOR = 10**9
MAX_INTEGER = 2**50
ROUNDED_BITS = 40


@dataclass(frozen=True, slots=True)
class Progress:
    """One line of news from a running search."""

    wall_s: float
    objective: float
    bound: float


def timed_solver(time_limit_s: float, seed: int, threads: int = 1) -> "cp_model.CpSolver":
    """A solver that stops at a wall-clock time."""
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = time_limit_s
    solver.parameters.num_workers = threads
    solver.parameters.random_seed = seed
    return solver


@dataclass(frozen=True, slots=True)
class _Scaled:
    factor: float
    numbers: tuple[int, ...]
    exact: bool


def run(
    model: LinearModel, limits: BackendLimits, on_progress: Callable[[Progress], None] | None = None
) -> BackendOutcome:
    """Solve a pure integer model; raises PlannerError when a variable is continuous or has no finite bounds."""
    from ortools.sat.python import cp_model

    _require_integers(model)
    native = cp_model.CpModel()
    variables = [
        native.new_int_var(math.ceil(low), math.floor(high), f"x{j}")
        for j, (low, high) in enumerate(zip(model.lower, model.upper, strict=True))
    ]
    exact = _add_rows(native, variables, model)
    objective = _scaled(model.objective.values())
    _set_objective(native, variables, model, objective)
    solver = cp_model.CpSolver()
    _configure(solver, limits)
    status = solver.solve(native, None if on_progress is None else _reporter(on_progress, model, objective))
    name = f"ortools-cpsat {version()}"
    if status == cp_model.MODEL_INVALID:
        raise PlannerError("CP-SAT rejects the model", where="solver", hint="use the mathopt-highs backend")
    if status == cp_model.INFEASIBLE:
        return BackendOutcome(Status.INFEASIBLE if exact else Status.UNKNOWN, "finished", None, None, name)
    stopped = "finished" if status == cp_model.OPTIMAL else _why(limits, solver.wall_time)
    bound = solver.best_objective_bound / objective.factor + model.offset if exact and objective.exact else None
    if status == cp_model.UNKNOWN:
        return BackendOutcome(Status.UNKNOWN, stopped, None, bound, name)
    proven = status == cp_model.OPTIMAL and bound is not None
    values = tuple(float(solver.value(variable)) for variable in variables)
    return BackendOutcome(Status.OPTIMAL if proven else Status.FEASIBLE, stopped, values, bound, name)


def _why(limits: BackendLimits, wall_s: float) -> str:
    if limits.time_limit_s is not None and wall_s >= 0.95 * limits.time_limit_s:
        return "time_limit"
    return "interrupted" if limits.node_limit is None else "node_limit"


def _require_integers(model: LinearModel) -> None:
    for name, low, high, kind in zip(model.names, model.lower, model.upper, model.integer, strict=True):
        if not kind:
            raise PlannerError("CP-SAT has no continuous variables", where=name, hint="use the mathopt-highs backend")
        if max(abs(low), abs(high)) > MAX_INTEGER:
            raise PlannerError("CP-SAT needs finite bounds", where=name, hint="use the mathopt-highs backend")


def _add_rows(native: "cp_model.CpModel", variables: "list[cp_model.IntVar]", model: LinearModel) -> bool:
    """Add every row in whole numbers; True when no coefficient was rounded."""
    exact = True
    for row in model.rows:
        sides = tuple(side for side in (row.lower, row.upper) if math.isfinite(side))
        scaled = _scaled((*row.coefficients, *sides))
        exact = exact and scaled.exact
        count = len(row.columns)
        form = sum(a * variables[j] for a, j in zip(scaled.numbers[:count], row.columns, strict=True))
        if row.lower > -INFINITY:
            native.add(form >= scaled.numbers[count])
        if row.upper < INFINITY:
            native.add(form <= scaled.numbers[-1])
    return exact


def _set_objective(
    native: "cp_model.CpModel", variables: "list[cp_model.IntVar]", model: LinearModel, objective: _Scaled
) -> None:
    form = sum(a * variables[j] for a, j in zip(objective.numbers, model.objective, strict=True))
    if model.maximising:
        native.maximize(form)
    else:
        native.minimize(form)


def _scaled(coefficients: Iterable[float]) -> _Scaled:
    """The coefficients as whole numbers `factor` times as large, exactly where a common denominator allows."""
    given = tuple(coefficients)
    fractions = [Fraction(repr(float(value))) for value in given]
    denominator = math.lcm(*(fraction.denominator for fraction in fractions)) if fractions else 1
    largest = max(map(abs, given), default=0.0)
    if denominator <= MAX_DENOMINATOR and largest * denominator <= MAX_INTEGER:
        return _Scaled(float(denominator), tuple(int(fraction * denominator) for fraction in fractions), True)
    factor = 2.0 ** (ROUNDED_BITS - math.frexp(largest)[1])
    return _Scaled(factor, tuple(round(value * factor) for value in given), False)


def _configure(solver: "cp_model.CpSolver", limits: BackendLimits) -> None:
    parameters = solver.parameters
    parameters.num_workers = limits.threads
    parameters.random_seed = limits.seed
    parameters.relative_gap_limit = limits.gap
    if limits.time_limit_s is not None:
        parameters.max_time_in_seconds = limits.time_limit_s
    if limits.node_limit is not None:
        parameters.max_number_of_conflicts = limits.node_limit


def _reporter(
    on_progress: Callable[[Progress], None], model: LinearModel, objective: _Scaled
) -> "cp_model.CpSolverSolutionCallback":
    from ortools.sat.python import cp_model

    class Reporter(cp_model.CpSolverSolutionCallback):
        def on_solution_callback(self) -> None:
            best = self.objective_value / objective.factor + model.offset
            on_progress(Progress(self.wall_time, best, self.best_objective_bound / objective.factor + model.offset))

    return Reporter()
