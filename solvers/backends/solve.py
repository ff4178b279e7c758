"""Solves a linear model (LP or MILP) with any backend; rounding, feasibility checks and statuses are ours."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from planner.errors import PlannerError
from planner.solvers.backends.model import LinearModel, Solution, check_feasible
from planner.solvers.backends.outcome import BackendLimits, BackendOutcome
from planner.solvers.result import SolveResult, Status

if TYPE_CHECKING:
    from planner.solvers.backends.cpsat import Progress

BACKENDS = ("mathopt-highs", "mathopt-gscip", "cpsat", "pulp-cbc")
THREADED = ("cpsat", "pulp-cbc")  # MathOpt 9.15 stops with an internal error when it gives HiGHS or GSCIP a second one
EXACT_TOLERANCE = 1e-10  # below this a solution is as exact as its floats; above it the continuous part is recomputed
FEASIBLE_TOLERANCE = 1e-6  # what the MIP solvers promise
PROOF_TOLERANCE = 1e-6  # the solvers' own absolute and relative optimality tolerances at gap 0


def solve(
    model: LinearModel,
    *,
    backend: str = "mathopt-highs",
    time_limit_s: float | None = None,
    node_limit: int | None = None,
    gap: float = 0.0,
    seed: int = 0,
    threads: int = 1,
    on_progress: "Callable[[Progress], None] | None" = None,
) -> SolveResult[Solution]:
    """The best solution a backend finds, with integers rounded, the objective recomputed and every row checked by us.

    `bound` is what the backend proved (None from PuLP before optimality). `on_progress` is heard by CP-SAT alone.
    Raises PlannerError for an unknown backend, an unbounded model, or one that the backend cannot express.
    """
    started_s = time.perf_counter()
    outcome = _run(model, backend, BackendLimits(time_limit_s, node_limit, gap, seed, threads), on_progress)
    values = None if outcome.values is None else _settle(model, outcome.values, coarse=outcome.coarse)
    status, stop_reason = outcome.status, outcome.stop_reason
    if values is not None and check_feasible(model, values, FEASIBLE_TOLERANCE):
        values, status, stop_reason = None, Status.UNKNOWN, "numerical"
    objective = None if values is None else model.objective_at(values)
    bound = _outer(model, objective, _claimed_bound(model, objective, outcome, gap))
    if status is Status.OPTIMAL and not _proven(objective, bound, gap):
        status, stop_reason = Status.FEASIBLE, "numerical"
    solution = None if values is None else Solution(model.names, values)
    return SolveResult(status, stop_reason, solution, objective, bound, time.perf_counter() - started_s, outcome.solver)


def _run(
    model: LinearModel, backend: str, limits: BackendLimits, on_progress: "Callable[[Progress], None] | None"
) -> BackendOutcome:
    if backend not in BACKENDS:
        raise PlannerError(f"unknown backend `{backend}`", where="solver", hint=f"use one of {', '.join(BACKENDS)}")
    if limits.threads > 1 and backend not in THREADED:
        hint = f"leave the threads out, or use {' or '.join(THREADED)}"
        raise PlannerError(f"`{backend}` runs on one thread", where="--threads", hint=hint)
    if backend == "cpsat":
        from planner.solvers.backends import cpsat

        return cpsat.run(model, limits, on_progress)
    if backend == "pulp-cbc":
        from planner.solvers.backends import pulp_cbc

        return pulp_cbc.run(model, limits)
    from planner.solvers.backends import mathopt

    return mathopt.run(model, backend, limits)


def _settle(model: LinearModel, raw: Sequence[float], *, coarse: bool) -> tuple[float, ...]:
    """Integers rounded and continuous values in their bounds; the latter recomputed by GLOP if that left a residue.

    MIP solvers accept integers off by 1e-6 and CBC prints 8 digits; with the integers fixed a vertex is exact.
    """
    columns = zip(raw, model.lower, model.upper, model.integer, strict=True)
    values = tuple(min(max(float(round(x)) if kind else x, low), high) for x, low, high, kind in columns)
    if all(model.integer) or not (coarse or _inexact(model, raw, values)):
        return values
    return vertex(model, {j: values[j] for j, kind in enumerate(model.integer) if kind}) or values


def vertex(model: LinearModel, fixed: Mapping[int, float]) -> tuple[float, ...] | None:
    """The exact optimum of the model with some columns fixed, as a vertex in its bounds; None when there is none."""
    from planner.solvers.backends.mathopt import Relaxation

    restricted = model.restricted(fixed, fixed)
    answer = Relaxation(restricted).solve(restricted.lower, restricted.upper)
    if answer.values is None:
        return None
    bounds = zip(answer.values, restricted.lower, restricted.upper, strict=True)
    return tuple(min(max(x, low), high) for x, low, high in bounds)


def _inexact(model: LinearModel, raw: Sequence[float], values: Sequence[float]) -> bool:
    moved = any(abs(before - after) > EXACT_TOLERANCE for before, after in zip(raw, values, strict=True))
    return moved or bool(check_feasible(model, values, EXACT_TOLERANCE))


def _claimed_bound(model: LinearModel, objective: float | None, outcome: BackendOutcome, gap: float) -> float | None:
    """The bound of the backend, or what its word that the solution is optimal within `gap` of the bound implies."""
    if outcome.bound is not None or outcome.status is not Status.OPTIMAL or objective is None:
        return outcome.bound
    slack = abs(objective) * gap / (1.0 - gap)
    return objective + slack if model.maximising else objective - slack


def _outer(model: LinearModel, objective: float | None, bound: float | None) -> float | None:
    """The bound, moved outwards to the objective where recomputing the objective crossed it."""
    if objective is None or bound is None:
        return bound
    return max(bound, objective) if model.maximising else min(bound, objective)


def _proven(objective: float | None, bound: float | None, gap: float) -> bool:
    if objective is None or bound is None:
        return False
    return abs(objective - bound) <= max(gap, PROOF_TOLERANCE) * max(abs(objective), 1.0)
