"""The choice of points against grids of equal size, on cost functions that are known everywhere."""

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from families import families_from_json, families_to_json
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.hardware.profiling.adaptive import Point, Refinement, refine
from planner.hardware.profiling.shapes import Family

SIZES = tuple(range(16, 4097, 16))
LINE = Family("gemm", (("n", 4096), ("k", 4096)), (("m", SIZES),))
PLANE = Family(
    "decode_attention",
    (("heads", 8), ("kv_heads", 8), ("head_dim", 128)),
    (("batch", tuple(2**e for e in range(9))), ("context", tuple(2**e for e in range(4, 18)))),
)


def stepped_s(point: Point) -> float:
    """A kernel with a floor, a knee, and a jump where a second wave of tiles begins."""
    (m,) = point
    return 5e-6 + 2e-8 * m + (2e-5 if m > 1500 else 0.0)


def bent_s(point: Point) -> float:
    """Bound by launches where small, by memory where large."""
    batch, context = point
    return max(8e-6, 3e-10 * batch * context) + 1e-8 * batch


def flat_s(_: Point) -> float:
    return 1e-6


def chosen(family: Family, cost_s: Callable[[Point], float], points: int) -> Refinement:
    """The family after `points` measurements."""
    taken = 0

    def measure(_: Family, point: Point) -> float:
        nonlocal taken
        taken += 1
        return cost_s(point)

    (refinement,) = refine([family], {family.name: flat_s}, measure, tolerance=0.0, enough=lambda: taken >= points)
    return refinement


def mean_error(predict_s: Callable[[float], float]) -> float:
    """Mean |log(predicted / true)| over the sizes, every octave of them counting alike."""
    errors = [abs(math.log(predict_s(float(m)) / stepped_s((m,)))) for m in SIZES]
    return float(np.average(errors, weights=1.0 / np.array(SIZES)))


@pytest.mark.parametrize("points", [6, 9, 12, 16, 24])
def test_chosen_points_interpolate_better_than_as_many_even_ones(points: int) -> None:
    refinement = chosen(LINE, stepped_s, points)
    assert len(refinement.measured_s) == points
    even = np.unique(np.geomspace(SIZES[0], SIZES[-1], points).round())
    even_s = np.array([stepped_s((int(m),)) for m in even])

    def even_grid_s(m: float) -> float:
        return float(np.exp(np.interp(np.log(m), np.log(even), np.log(even_s))))

    assert mean_error(lambda m: refinement.predict_s((m,))) < mean_error(even_grid_s)


def test_points_gather_at_a_jump() -> None:
    refinement = chosen(LINE, stepped_s, 16)
    measured = sorted(refinement.sizes(index)[0] for index in refinement.measured_s)
    near = [m for m in measured if 1400 <= m <= 1600]
    assert len(near) >= 2
    assert any(a <= 1500 < b and b - a <= 160 for a, b in pairwise(measured))


def test_measured_points_of_two_axes_are_given_back_exactly() -> None:
    refinement = chosen(PLANE, bent_s, 40)
    for index in refinement.measured_s:
        sizes = refinement.sizes(index)
        assert refinement.predict_s(tuple(map(float, sizes))) == pytest.approx(bent_s(sizes), rel=1e-12)


def test_a_tolerance_that_is_met_everywhere_ends_the_measuring() -> None:
    def power_law_s(point: Point) -> float:
        return 1e-6 * math.pow(point[0], 0.7)

    (refinement,) = refine([LINE], {LINE.name: flat_s}, lambda _, point: power_law_s(point), tolerance=0.01)
    assert len(refinement.measured_s) == 3  # two ends, and the middle that shows the straight line


def test_a_family_with_a_corner_that_cannot_run_is_left_out_and_others_stay() -> None:
    def measure(family: Family, point: Point) -> float | None:
        return None if family is PLANE and point[1] > 60_000 else 1e-5

    refined = refine([PLANE, LINE], {PLANE.name: flat_s, LINE.name: flat_s}, measure)
    assert [refinement.family for refinement in refined] == [LINE]


@given(st.floats(16, 4096), st.floats(0.2, 1.2))
def test_prediction_lies_between_the_measured_corners_of_its_cell(m: float, power: float) -> None:
    refinement = chosen(LINE, lambda point: 1e-6 * math.pow(point[0], power), 6)
    around = sorted(refinement.measured_s.values())
    assert around[0] * (1 - 1e-9) <= refinement.predict_s((m,)) <= around[-1] * (1 + 1e-9)


def test_families_survive_json() -> None:
    assert families_from_json(families_to_json([LINE, PLANE])) == [LINE, PLANE]


@pytest.mark.parametrize(
    ("kind", "fixed", "sweep", "said"),
    [
        ("gem", (), (("m", (1, 2)),), "kind must be one of"),
        ("gemm", (("width", 4),), (("m", (1, 2)),), "no size `width`"),
        ("gemm", (), (("m", (2, 1)),), "positive and increasing"),
        ("gemm", (), (("m", ()),), "positive and increasing"),
    ],
)
def test_bad_families_are_named(
    kind: str, fixed: tuple[tuple[str, int], ...], sweep: tuple[tuple[str, tuple[int, ...]], ...], said: str
) -> None:
    with pytest.raises(PlannerError, match=said):
        Family(kind, fixed, sweep)


def test_damaged_lists_of_families_are_named() -> None:
    with pytest.raises(PlannerError, match="not a list of shapes"):
        families_from_json([{"kind": "gemm"}])
