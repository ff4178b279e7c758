"""PuLP with CBC: the second backend, independent of OR-Tools in its search for the integers.

PuLP imports `highspy` wherever it is installed, and `highspy` cannot share a process with OR-Tools: OR-Tools is
loaded first and `highspy` is masked while PuLP is imported. PuLP says "Optimal" when CBC stopped at a limit with a
solution, so `sol_status` decides; it reports no bound, and CBC prints 8 digits.
"""

import importlib
import math
import sys
import warnings
from types import ModuleType
from typing import TYPE_CHECKING

from planner.errors import PlannerError
from planner.solvers.backends.model import LinearModel
from planner.solvers.backends.outcome import BackendLimits, BackendOutcome
from planner.solvers.result import Status

if TYPE_CHECKING:
    import pulp

_ABSENT = object()


def load_pulp() -> ModuleType:
    """The `pulp` module, imported after OR-Tools and without `highspy`."""
    if "pulp" in sys.modules:
        return sys.modules["pulp"]
    importlib.import_module("ortools.math_opt.python.mathopt")
    installed = sys.modules.get("highspy", _ABSENT)
    # None makes `import highspy` fail and `find_spec("highspy")` say it is absent: both ways PuLP looks for it.
    sys.modules["highspy"] = None  # type: ignore[assignment]
    try:
        return importlib.import_module("pulp")
    finally:
        del sys.modules["highspy"]
        if isinstance(installed, ModuleType):
            sys.modules["highspy"] = installed


def run(model: LinearModel, limits: BackendLimits) -> BackendOutcome:
    """Solve a mixed-integer model with the CBC that PuLP carries; there is no bound short of optimality."""
    load_pulp()
    import pulp

    with warnings.catch_warnings():
        # The classic way to build a problem is the only one that all of PuLP 3 has; 3.3 announces its end in 4.
        warnings.simplefilter("ignore", DeprecationWarning)
        problem, variables = _translate(model)
        # The integer preprocessing of CBC 2.10.3 cuts some optima off (tests/kinds/serve/test_serve_optimum.py).
        options = [f"randomSeed {limits.seed}", f"randomCbcSeed {limits.seed}", "preprocess off"]
        command = pulp.PULP_CBC_CMD(
            msg=False,
            timeLimit=limits.time_limit_s,
            gapRel=limits.gap,
            gapAbs=0.0,
            threads=limits.threads,
            maxNodes=limits.node_limit,
            options=options,
        )
        problem.solve(command)
        values = tuple(_value(variable) for variable in variables)
    solver = f"pulp-cbc {pulp.__version__}"
    if problem.status == pulp.LpStatusUnbounded:
        raise PlannerError("the model is unbounded: a variable of its objective has no limit")
    if problem.status == pulp.LpStatusInfeasible:
        return BackendOutcome(Status.INFEASIBLE, "finished", None, None, solver)
    if problem.sol_status == pulp.LpSolutionOptimal:
        return BackendOutcome(Status.OPTIMAL, "finished", values, None, solver, coarse=True)
    stop_reason = "node_limit" if limits.time_limit_s is None else "time_limit"
    if problem.sol_status == pulp.LpSolutionIntegerFeasible:
        return BackendOutcome(Status.FEASIBLE, stop_reason, values, None, solver, coarse=True)
    return BackendOutcome(Status.UNKNOWN, stop_reason, None, None, solver)


def _value(variable: "pulp.LpVariable") -> float:
    return 0.0 if variable.varValue is None else float(variable.varValue)


def _translate(model: LinearModel) -> "tuple[pulp.LpProblem, list[pulp.LpVariable]]":
    """The PuLP problem with its variables in our order; names are positions, as CBC's files are picky about names."""
    import pulp

    problem = pulp.LpProblem("model", pulp.LpMaximize if model.maximising else pulp.LpMinimize)
    variables = [
        pulp.LpVariable(f"x{j}", _finite(low), _finite(high), cat=pulp.LpInteger if kind else pulp.LpContinuous)
        for j, (low, high, kind) in enumerate(zip(model.lower, model.upper, model.integer, strict=True))
    ]
    # A zero coefficient on every column keeps variables in the file that no row or objective mentions.
    objective = [(variable, model.objective.get(j, 0.0)) for j, variable in enumerate(variables)]
    problem += pulp.LpAffineExpression(objective, constant=model.offset)
    for index, row in enumerate(model.rows):
        pairs = [(variables[j], a) for j, a in zip(row.columns, row.coefficients, strict=True)]
        for side, sense in _sides(row.lower, row.upper):
            constraint = pulp.LpConstraint(pulp.LpAffineExpression(pairs), sense, rhs=side)
            problem.addConstraint(constraint, f"c{index}_{sense + 1}")
    return problem, variables


def _sides(lower: float, upper: float) -> list[tuple[float, int]]:
    """The finite sides of a row as (right-hand side, PuLP sense: -1 for <=, 0 for =, 1 for >=)."""
    if lower == upper:
        return [(lower, 0)]
    return [(side, sense) for side, sense in ((upper, -1), (lower, 1)) if math.isfinite(side)]


def _finite(bound: float) -> float | None:
    return bound if math.isfinite(bound) else None
