"""The non-dominated set against the quadratic definition."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.arrays import Bools, Floats
from planner.errors import PlannerError
from planner.solvers import pareto
from planner.solvers.pareto import efficient, non_dominated


def by_definition(points: list[tuple[float, ...]], maximise: list[bool]) -> list[int]:
    signed = [tuple(v if up else -v for v, up in zip(point, maximise, strict=True)) for point in points]

    def dominated(i: int) -> bool:
        return any(
            all(a >= b for a, b in zip(signed[j], signed[i], strict=True)) and (signed[j] != signed[i] or j < i)
            for j in range(len(signed))
        )

    return [i for i in range(len(signed)) if not dominated(i)]


_figures = st.lists(st.tuples(st.integers(0, 6), st.one_of(st.integers(0, 6), st.just(np.inf))), max_size=9)


@given(_figures)
def test_of_points_in_order_of_size_those_stay_that_are_faster_than_all_before(points: list[tuple[int, float]]) -> None:
    chosen = efficient(np.array([size for size, _ in points], float), np.array([time for _, time in points], float))
    small = sorted((size, time) for size, time in points if time < np.inf)
    wanted = [point for i, point in enumerate(small) if all(point[1] < time for _, time in small[:i])]
    assert [points[index] for index in chosen] == wanted


@settings(max_examples=200, deadline=None)
@given(st.data(), st.integers(1, 4))
def test_it_agrees_with_the_definition(data: st.DataObject, axes: int) -> None:
    values = st.one_of(st.integers(0, 4).map(float), st.floats(-1e3, 1e3), st.just(float("inf")))
    points = data.draw(st.lists(st.tuples(*[values] * axes), max_size=40))
    maximise = data.draw(st.lists(st.booleans(), min_size=axes, max_size=axes))
    assert non_dominated(points, maximise=maximise).tolist() == by_definition(points, maximise)


@pytest.mark.parametrize("axes", [2, 3])
def test_blocks_agree_with_one_another_on_many_points(axes: int) -> None:
    points = np.random.default_rng(0).integers(0, 60, size=(2000, axes)).astype(float)
    maximise = [True, False, True][:axes]
    expected = by_definition([tuple(point) for point in points.tolist()], maximise)
    assert non_dominated(points, maximise=maximise).tolist() == expected


def test_of_equal_points_the_first_stays() -> None:
    assert non_dominated([(1.0, 1.0), (2.0, 0.0), (1.0, 1.0)], maximise=[True, True]).tolist() == [0, 1]


def test_a_hundred_thousand_points_are_each_compared_with_the_few_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    points = np.random.default_rng(1).random((100_000, 3))
    compared, covered = [], pareto._covered

    def counted(by_KA: Floats, points_NA: Floats) -> Bools:
        compared.append(len(by_KA) * len(points_NA))
        return covered(by_KA, points_NA)

    monkeypatch.setattr(pareto, "_covered", counted)
    kept = non_dominated(points, maximise=[True, True, True])
    assert 10 < len(kept) < 1000
    assert sum(compared) <= len(points) * (len(kept) + 2 * pareto.BLOCK) < 0.02 * len(points) ** 2


def test_a_point_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(PlannerError, match="not a number"):
        non_dominated([(1.0, float("nan"))], maximise=[True, True])
