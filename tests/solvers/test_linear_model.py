"""Expressions, rows, the solver-free feasibility check and the JSON form of a linear model."""

import json

import pytest

from planner.errors import PlannerError
from planner.solvers.backends.model import LinearModel, Solution, check_feasible, total


def small_model() -> LinearModel:
    model = LinearModel()
    x, y = model.integer_variable("x", 0, 5), model.continuous("y", 0.0)
    model.add(2 * x + y - 1 <= 6 + x, "limit")
    model.add(x - y == 0.5, "tie")
    model.maximise(3 * x + 4 - y)
    return model


def test_constants_and_repeated_variables_gather_in_one_row() -> None:
    limit = small_model().rows[0]
    assert (limit.columns, limit.coefficients, limit.lower, limit.upper) == ((0, 1), (1.0, 1.0), float("-inf"), 7.0)


def test_a_sum_written_either_way_is_the_same() -> None:
    model = LinearModel()
    x, y = model.binary("x"), model.binary("y")
    by_operators, by_total = 1 + x + 2 * y - 3, total([x, 2 * y, -2])
    assert (by_operators.terms, by_operators.constant) == (by_total.terms, by_total.constant)
    assert (5 - x).terms == {0: -1.0}


def test_the_objective_is_recomputed_with_its_constant() -> None:
    assert small_model().objective_at((2.0, 1.5)) == 8.5


def test_a_feasible_point_has_no_violations_and_each_break_is_named() -> None:
    model = small_model()
    assert check_feasible(model, (2.0, 1.5)) == []
    assert [v.name for v in check_feasible(model, (2.5, 2.0))] == ["x"]
    assert [v.name for v in check_feasible(model, (-1.0, -1.5))] == ["x", "y"]
    broken = check_feasible(model, (5.0, 3.0))
    assert [(v.name, v.amount) for v in broken] == [("limit", 1.0), ("tie", 1.5)]
    assert [v.name for v in check_feasible(model, (float("nan"), 0.0))] == ["x"]


def test_a_name_is_used_once() -> None:
    model = small_model()
    with pytest.raises(PlannerError, match="used twice"):
        model.binary("x")
    with pytest.raises(PlannerError, match="used twice"):
        model.add(total([]) <= 1, "tie")


@pytest.mark.parametrize("bounds", [(2.0, 1.0), (float("nan"), 1.0), (float("inf"), float("inf"))])
def test_an_empty_domain_is_refused(bounds: tuple[float, float]) -> None:
    with pytest.raises(PlannerError, match="empty domain"):
        LinearModel().continuous("x", *bounds)


def test_a_coefficient_must_be_finite() -> None:
    model = LinearModel()
    x = model.binary("x")
    with pytest.raises(PlannerError, match="not finite"):
        model.add(float("inf") * x <= 1, "row")
    with pytest.raises(PlannerError, match="not finite"):
        model.minimise(float("nan") * x)


def test_a_model_survives_json_unchanged() -> None:
    model = small_model()
    assert LinearModel.from_dict(json.loads(json.dumps(model.to_dict()))).to_dict() == model.to_dict()


@pytest.mark.parametrize("key", ["names", "rows", "objective", "offset"])
def test_a_truncated_model_is_refused(key: str) -> None:
    data = small_model().to_dict()
    data[key] = None
    with pytest.raises(PlannerError, match="malformed"):
        LinearModel.from_dict(data)


def test_a_model_that_names_a_missing_column_is_refused() -> None:
    data = small_model().to_dict()
    data["rows"][0][1][0] = -7
    with pytest.raises(PlannerError, match="malformed"):
        LinearModel.from_dict(data)


def test_a_solution_reads_by_name_and_by_expression() -> None:
    model = LinearModel()
    x, y = model.binary("x"), model.binary("y")
    solution = Solution(model.names, (1.0, 0.0))
    assert dict(solution) == {"x": 1.0, "y": 0.0}
    assert solution.value(2 * x + y + 1) == 3.0


def test_a_restricted_copy_leaves_the_model_alone() -> None:
    model = small_model()
    copy = model.restricted({0: 1.0}, {0: 2.0})
    copy.binary("new")
    assert (copy.lower[0], copy.upper[0]) == (1.0, 2.0)
    assert (model.lower[0], model.upper[0], len(model.names)) == (0.0, 5.0, 2)
