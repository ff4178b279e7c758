"""Every backend behind one `solve`: the same answers, honest statuses, and no highspy."""

import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.errors import PlannerError
from planner.solvers.backends import mathopt
from planner.solvers.backends.cpsat import Progress
from planner.solvers.backends.model import LinearModel, check_feasible, total
from planner.solvers.backends.outcome import BackendOutcome
from planner.solvers.backends.solve import BACKENDS, _claimed_bound, solve
from planner.solvers.result import Status

MIXED = [backend for backend in BACKENDS if backend != "cpsat"]


def knapsack(seed: int, *, continuous: bool = False, maximise: bool = True) -> LinearModel:
    draw = random.Random(seed)
    model = LinearModel()
    x = [model.integer_variable(f"x{i}", 0, 4) for i in range(6)]
    weights = [draw.randint(3, 20) for _ in x]
    values = [weight + draw.randint(0, 9) / 4 for weight in weights]
    parts = [value * item for value, item in zip(values, x, strict=True)]
    if continuous:
        y = model.continuous("y", 0.0, 10.0)
        model.add(3 * y + x[0] <= 100 / 3, "mixed")
        parts.append(y * (1 / 3))
    load = total(weight * item for weight, item in zip(weights, x, strict=True))
    if maximise:
        model.add(load <= 61, "capacity")
        model.maximise(total([*parts, 2.0]))
    else:
        model.add(load >= 61, "demand")
        model.minimise(total([*parts, 2.0]))
    return model


def market_split(rows: int = 5, columns: int = 40) -> LinearModel:
    """Feasible at once and very hard to prove optimal: Cornuejols and Dawande, INFORMS J. Comput. 11 (1999)."""
    draw = random.Random(1)
    model = LinearModel()
    x = [model.binary(f"x{j}") for j in range(columns)]
    excess = [model.integer_variable(f"s{i}", 0, 5000) for i in range(2 * rows)]
    for i in range(rows):
        a = [draw.randint(0, 99) for _ in x]
        split = total(value * item for value, item in zip(a, x, strict=True))
        model.add(split + excess[2 * i] - excess[2 * i + 1] == sum(a) // 2, f"row{i}")
    model.minimise(total(excess))
    return model


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("maximise", [True, False])
def test_backends_agree_on_integer_models(backend: str, maximise: bool) -> None:
    for seed in range(4):
        model = knapsack(seed, maximise=maximise)
        reference, result = solve(model), solve(model, backend=backend)
        assert result.status is Status.OPTIMAL
        assert result.stop_reason == "finished"
        assert result.objective == pytest.approx(reference.objective, rel=1e-9)
        assert result.bound == pytest.approx(reference.objective, rel=1e-6)
        assert result.solution is not None
        assert check_feasible(model, result.solution.values_by_column, 1e-9) == []


@pytest.mark.parametrize("backend", MIXED)
def test_backends_agree_to_1e_9_on_mixed_models(backend: str) -> None:
    for seed in range(4):
        model = knapsack(seed, continuous=True)
        assert solve(model, backend=backend).objective == pytest.approx(solve(model).objective, rel=1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_infeasible_model_is_proven_so(backend: str) -> None:
    model = knapsack(0)
    model.add(total(3 * model.variable(f"z{i}", 0, 1, integer=True) for i in range(2)) == 5, "odd")
    result = solve(model, backend=backend)
    assert (result.status, result.solution, result.objective) == (Status.INFEASIBLE, None, None)


@pytest.mark.parametrize("backend", MIXED)
def test_an_unbounded_model_is_an_error(backend: str) -> None:
    model = LinearModel()
    x = model.integer_variable("x")
    y = model.continuous("y", 0.0, 1.0)
    model.add(x + y >= 1, "row")
    model.maximise(x + y)
    with pytest.raises(PlannerError, match="unbounded"):
        solve(model, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_time_limit_is_not_called_optimal(backend: str) -> None:
    result = solve(market_split(), backend=backend, time_limit_s=0.3)
    assert result.status in (Status.FEASIBLE, Status.UNKNOWN)
    assert result.stop_reason == "time_limit"
    if backend == "pulp-cbc":
        assert result.bound is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_node_limit_stops_every_run_at_the_same_answer(backend: str) -> None:
    first, second = (solve(market_split(), backend=backend, node_limit=20, seed=3) for _ in range(2))
    assert first.status is not Status.OPTIMAL
    assert first.stop_reason == "node_limit"
    assert (first.objective, first.bound) == (second.objective, second.bound)


@pytest.mark.parametrize("stopped_with_a_solution", [True, False])
def test_what_cbc_has_when_it_is_stopped_is_feasible_or_nothing(
    stopped_with_a_solution: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulp = pytest.importorskip("pulp")

    def stopped(problem: Any, command: object) -> None:  # noqa: ANN401 - a class without types
        problem.status = pulp.LpStatusNotSolved
        problem.sol_status = (
            pulp.LpSolutionIntegerFeasible if stopped_with_a_solution else pulp.LpSolutionNoSolutionFound
        )
        for variable in problem.variables():
            variable.varValue = 0.0

    monkeypatch.setattr(pulp.LpProblem, "solve", stopped)
    result = solve(knapsack(1), backend="pulp-cbc", time_limit_s=1.0)
    assert result.status is (Status.FEASIBLE if stopped_with_a_solution else Status.UNKNOWN)
    assert (result.solution is not None) == stopped_with_a_solution
    assert result.stop_reason == "time_limit"


def test_a_backend_that_proves_a_gap_without_a_bound_implies_it() -> None:
    outcome = BackendOutcome(Status.OPTIMAL, "finished", (8.0,), None, "any")
    for maximising, bound in ((True, 10.0), (False, 6.0)):
        model = LinearModel(maximising=maximising)
        assert _claimed_bound(model, 8.0, outcome, 0.2) == pytest.approx(bound)  # a fifth of the bound, or of 8 + 2
        assert _claimed_bound(model, None, outcome, 0.2) is None
        assert _claimed_bound(model, 8.0, replace(outcome, bound=9.0), 0.2) == 9.0
        assert _claimed_bound(model, 8.0, replace(outcome, status=Status.FEASIBLE), 0.2) is None


def test_a_gap_is_kept_between_objective_and_bound() -> None:
    result = solve(knapsack(1, continuous=True), gap=0.2)
    assert result.status is Status.OPTIMAL
    assert result.gap is not None
    assert result.gap <= 0.25


@pytest.mark.parametrize("backend", BACKENDS)
def test_solver_name_and_version_are_recorded(backend: str) -> None:
    name, version = solve(knapsack(0), backend=backend).solver.split()
    assert name.rpartition("-")[2] in backend
    assert version[0].isdigit()


def test_cpsat_reports_progress_that_improves() -> None:
    seen: list[Progress] = []
    result = solve(market_split(3, 20), backend="cpsat", node_limit=10_000, on_progress=seen.append)
    assert seen
    objectives = [progress.objective for progress in seen]
    assert objectives == sorted(objectives, reverse=True)
    assert result.objective == pytest.approx(objectives[-1])


def test_cpsat_refuses_continuous_variables() -> None:
    with pytest.raises(PlannerError, match="no continuous variables"):
        solve(knapsack(0, continuous=True), backend="cpsat")


def test_cpsat_claims_no_proof_when_it_had_to_round() -> None:
    model = LinearModel()
    x, y = model.integer_variable("x", 0, 9), model.integer_variable("y", 0, 9)
    model.add(2**0.5 * x + 3**0.5 * y <= 10, "irrational")
    model.maximise(x + y)
    result = solve(model, backend="cpsat")
    assert (result.status, result.bound) == (Status.FEASIBLE, None)
    assert result.objective == solve(model).objective


def test_an_unknown_backend_is_named_with_the_known_ones() -> None:
    with pytest.raises(PlannerError, match=r"unknown backend `cplex`[\s\S]*pulp-cbc"):
        solve(knapsack(0), backend="cplex")


def test_a_linear_program_needs_no_integers() -> None:
    model = LinearModel()
    x, y = model.continuous("x", 0.0, 3.0), model.continuous("y")
    model.add(x + y <= 4, "row")
    model.maximise(x + 2 * y)
    for backend in MIXED:
        assert solve(model, backend=backend).objective == pytest.approx(8.0, rel=1e-9)


def test_highs_leaves_standard_output_alone() -> None:
    code = """
import random
from planner.solvers.backends.model import LinearModel, total
from planner.solvers.backends.solve import solve
random.seed(2)
model = LinearModel()
x, y = [model.integer_variable(f"x{i}", 0, 7) for i in range(12)], model.continuous("y", 0, 1e3)
weights = [random.randint(20, 90) for _ in x]
model.maximise(total([*((a + random.random()) * v for v, a in zip(x, weights)), y * (1 / 3)]))
model.add(total(a * 1.1 * v for v, a in zip(x, weights)) <= 1000.333333333, "capacity")
model.add(3 * y + x[0] * 1.7 <= 100 / 3, "mixed")
print("before")
solve(model, backend="mathopt-highs")
print("after")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "before\nafter\n"


@pytest.fixture
def fake_highspy(tmp_path: Path) -> dict[str, str]:
    """An environment in which importing highspy ends the process with status 97."""
    package = tmp_path / "highspy"
    package.mkdir()
    (package / "__init__.py").write_text("import os\nos._exit(97)\n")
    return {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONWARNINGS": "ignore"}


def _exit_status(code: str, environment: dict[str, str]) -> int:
    return subprocess.run([sys.executable, "-c", code], env=environment, check=False, timeout=60).returncode


def test_pulp_alone_would_import_the_installed_highspy(fake_highspy: dict[str, str]) -> None:
    assert _exit_status("import pulp", fake_highspy) == 97


def test_our_pulp_backend_never_imports_an_installed_highspy(fake_highspy: dict[str, str]) -> None:
    code = """
import importlib.util, sys
from planner.solvers.backends.model import LinearModel
from planner.solvers.backends.solve import solve
model = LinearModel()
x = model.integer_variable("x", 0, 5)
model.maximise(2 * x)
assert solve(model, backend="pulp-cbc").objective == 10.0
assert list(sys.modules).index("ortools") < list(sys.modules).index("pulp")
assert "highspy" not in sys.modules
assert importlib.util.find_spec("highspy") is not None
assert solve(model).objective == 10.0
"""
    assert _exit_status(code, fake_highspy) == 0


def test_formulations_and_certificates_import_no_solver() -> None:
    code = """
import sys
import planner.solvers.backends.solve, planner.solvers.dualtree
import planner.solvers.conflicts, planner.solvers.layouts.packing, planner.solvers.mix
assert not {"ortools", "pulp", "scipy", "numpy", "pandas"} & set(sys.modules)
"""
    assert _exit_status(code, dict(os.environ)) == 0


@pytest.mark.parametrize("failures", [1, 2])
def test_relaxations_whose_numbers_fail_a_solver_are_solved_anew(
    failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GLOP from its last vertex, GLOP anew, HiGHS: each is asked where the one before stops with an internal error."""
    from pybind11_abseil.status import StatusNotOk

    model, asked = knapsack(3, continuous=True), mathopt._asked
    whole = mathopt.Relaxation(model).solve(model.lower, model.upper)
    calls: list[Any] = []

    def failing(solver: Any) -> Any:  # noqa: ANN401 - MathOpt's own
        calls.append(solver)
        if len(calls) <= failures:
            raise StatusNotOk.__new__(StatusNotOk)
        return asked(solver)

    monkeypatch.setattr(mathopt, "_asked", failing)
    again = mathopt.Relaxation(model).solve(model.lower, model.upper)
    assert len({id(solver) for solver in calls}) == failures + 1
    assert again.objective == pytest.approx(whole.objective)
    assert again.duals == pytest.approx(whole.duals)
