"""OR-Tools MathOpt: HiGHS and GSCIP for mixed-integer models, GLOP for linear relaxations with duals.

MathOpt 9.15 has no interrupter in Python, and neither its HiGHS nor its GSCIP takes a second thread: limits are time
and nodes.
"""

import contextlib
import ctypes
import datetime
import functools
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from planner.errors import PlannerError
from planner.solvers.backends.model import LinearModel
from planner.solvers.backends.outcome import BackendLimits, BackendOutcome
from planner.solvers.result import Status

if TYPE_CHECKING:
    from ortools.math_opt.python import mathopt

SOLVERS = {"mathopt-highs": "HIGHS", "mathopt-gscip": "GSCIP"}


@functools.cache
def version() -> str:
    """The installed version of OR-Tools."""
    from importlib.metadata import version as installed

    return installed("ortools")


def run(model: LinearModel, backend: str, limits: BackendLimits) -> BackendOutcome:
    """Solve a mixed-integer model with HiGHS or GSCIP; raises PlannerError when it is unbounded."""
    from ortools.math_opt.python import mathopt

    solver_type = mathopt.SolverType[SOLVERS[backend]]
    native, variables, _ = _translate(model, relaxed=False)
    with _silent_stdout():
        result = mathopt.solve(native, solver_type, params=_parameters(limits))
    reason = result.termination.reason
    solver = f"ortools-{SOLVERS[backend].lower()} {version()}"
    if reason is mathopt.TerminationReason.INFEASIBLE_OR_UNBOUNDED:
        native.objective.clear()
        unbounded = mathopt.solve(native, solver_type).has_primal_feasible_solution()
        reason = mathopt.TerminationReason.UNBOUNDED if unbounded else mathopt.TerminationReason.INFEASIBLE
    if reason is mathopt.TerminationReason.UNBOUNDED:
        raise PlannerError("the model is unbounded: a variable of its objective has no limit")
    if reason is mathopt.TerminationReason.INFEASIBLE:
        return BackendOutcome(Status.INFEASIBLE, "finished", None, None, solver)
    values = tuple(result.variable_values(variables)) if result.has_primal_feasible_solution() else None
    bound = result.termination.objective_bounds.dual_bound
    optimal = reason is mathopt.TerminationReason.OPTIMAL
    status = Status.UNKNOWN if values is None else Status.OPTIMAL if optimal else Status.FEASIBLE
    stop_reason = "finished" if optimal else _stop_reason(result.termination)
    return BackendOutcome(status, stop_reason, values, bound if math.isfinite(bound) else None, solver)


@contextlib.contextmanager
def _silent_stdout() -> Iterator[None]:
    """File descriptor 1 turned to the null device: HiGHS prints stray debug lines there even with its log off."""
    sys.stdout.flush()
    try:
        kept = os.dup(1)
    except OSError:  # standard output is closed: nothing can be printed on it
        yield
        return
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 1)
        yield
    finally:
        ctypes.CDLL(None).fflush(None)  # the line may still lie in the C library's buffer
        os.dup2(kept, 1)
        os.close(kept)
        os.close(null)


def _stop_reason(termination: "mathopt.Termination") -> str:
    from ortools.math_opt.python import mathopt

    names = {
        mathopt.Limit.TIME: "time_limit",
        mathopt.Limit.NODE: "node_limit",
        mathopt.Limit.ITERATION: "node_limit",
        mathopt.Limit.INTERRUPTED: "interrupted",
    }
    return names.get(termination.limit, "numerical") if termination.limit is not None else "numerical"


def _parameters(limits: BackendLimits) -> "mathopt.SolveParameters":
    from ortools.math_opt.python import mathopt

    time_limit = None if limits.time_limit_s is None else datetime.timedelta(seconds=limits.time_limit_s)
    return mathopt.SolveParameters(
        time_limit=time_limit,
        node_limit=limits.node_limit,
        relative_gap_tolerance=limits.gap,
        absolute_gap_tolerance=0.0,
        random_seed=limits.seed,
    )


def _translate(model: LinearModel, *, relaxed: bool) -> tuple[Any, list[Any], list[Any]]:
    """The MathOpt model with its variables and constraints in our order."""
    from ortools.math_opt.python import mathopt

    native = mathopt.Model()
    columns = zip(model.lower, model.upper, model.integer, strict=True)
    variables = [native.add_variable(lb=low, ub=high, is_integer=kind and not relaxed) for low, high, kind in columns]
    constraints = []
    for row in model.rows:
        constraint = native.add_linear_constraint(lb=row.lower, ub=row.upper)
        for column, value in zip(row.columns, row.coefficients, strict=True):
            constraint.set_coefficient(variables[column], value)
        constraints.append(constraint)
    for column, value in model.objective.items():
        native.objective.set_linear_coefficient(variables[column], value)
    native.objective.offset = model.offset
    native.objective.is_maximize = model.maximising
    return native, variables, constraints


@dataclass(frozen=True, slots=True)
class LpAnswer:
    """An optimal vertex of a relaxation with one dual value a row; `values` is None when there is no feasible point."""

    values: tuple[float, ...] | None
    objective: float | None
    duals: tuple[float, ...] | None


class Relaxation:
    """The linear relaxation of a model, solved again (warm) as bounds of columns move or columns come.

    Answers are read as the solver writes them: MathOpt's own objects, with bases and a dictionary for each of their
    parts, take five times as long to make as small relaxations to solve.
    """

    def __init__(self, model: LinearModel) -> None:
        self._native, self._variables, self._constraints = _translate(model, relaxed=True)
        self._lower, self._upper = list(model.lower), list(model.upper)
        self._moved = self._native.add_update_tracker()
        self._solver = self._new("GLOP")

    def _new(self, name: str) -> Any:  # noqa: ANN401 - MathOpt's own
        """A solver of the relaxation as it is boxed now."""
        from ortools.math_opt import parameters_pb2
        from ortools.math_opt.core.python import solver

        kind = getattr(parameters_pb2, f"SOLVER_TYPE_{name}")
        return solver.new(kind, self._native.export_model(), parameters_pb2.SolverInitializerProto())

    def add_column(self, cost: float, coefficient_of_row: Mapping[int, float], upper: float) -> None:
        """Another column, from 0 to `upper`, behind those that are there."""
        variable = self._native.add_variable(lb=0.0, ub=upper)
        for row, value in coefficient_of_row.items():
            self._constraints[row].set_coefficient(variable, value)
        self._native.objective.set_linear_coefficient(variable, cost)
        self._variables.append(variable)
        self._lower.append(0.0)
        self._upper.append(upper)

    def solve_again(self) -> LpAnswer:
        """The relaxation with columns boxed as they were last."""
        return self.solve(self._lower, self._upper)

    def solve(self, lower: Sequence[float], upper: Sequence[float]) -> LpAnswer:
        """The relaxation with columns boxed in [lower, upper], by GLOP."""
        from ortools.math_opt import result_pb2

        for column, (low, high) in enumerate(zip(lower, upper, strict=True)):
            if low != self._lower[column]:
                self._variables[column].lower_bound = self._lower[column] = low
            if high != self._upper[column]:
                self._variables[column].upper_bound = self._upper[column] = high
        update = self._moved.export_update()
        if update is not None:
            assert self._solver.update(update), "GLOP takes other bounds and more columns"
            self._moved.advance_checkpoint()
        answer = self._answer()
        if answer.termination.reason != result_pb2.TERMINATION_REASON_OPTIMAL:
            return LpAnswer(None, None, None)
        best = answer.solutions[0]
        return LpAnswer(
            _dense(best.primal_solution.variable_values, len(self._variables)),
            best.primal_solution.objective_value,
            _dense(best.dual_solution.dual_values, len(self._constraints)),
        )

    def _answer(self) -> Any:  # noqa: ANN401 - a message of MathOpt
        """What the solver says; from a vertex where its numbers fail it another starts anew, then HiGHS for once."""
        from pybind11_abseil.status import StatusNotOk

        with contextlib.suppress(StatusNotOk):
            return _asked(self._solver)
        self._solver = self._new("GLOP")
        with contextlib.suppress(StatusNotOk):
            return _asked(self._solver)
        with _silent_stdout():
            return _asked(self._new("HIGHS"))


def _asked(solver: Any) -> Any:  # noqa: ANN401 - MathOpt's own
    from ortools.math_opt import callback_pb2, model_parameters_pb2, parameters_pb2

    asked = parameters_pb2.SolveParametersProto(), model_parameters_pb2.ModelSolveParametersProto()
    return solver.solve(*asked, None, callback_pb2.CallbackRegistrationProto(), None, None)


def _dense(vector: Any, size: int) -> tuple[float, ...]:  # noqa: ANN401 - a message of MathOpt
    """A sparse vector by the numbers of its places, which count up from 0."""
    values = [0.0] * size
    for place, value in zip(vector.ids, vector.values, strict=True):
        values[place] = value
    return tuple(values)
