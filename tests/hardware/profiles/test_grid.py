import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from planner.hardware.profiles.grid import Grid, corners, fastest_of, nearest_measured

AXES = (np.array([1.0, 2.0, 8.0, 64.0]), np.array([0.0, 1.0, 7.0]))


def grid_of(latency_s: NDArray[np.float64], axes: tuple[NDArray[np.float64], ...] = AXES) -> Grid:
    names = tuple(f"axis{d}" for d in range(len(axes)))
    return Grid(axes, names, latency_s, ("kernel",), nearest_measured(axes, latency_s))


def log_plane(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    return 3.0 + 2.0 * np.log2(a) - 0.5 * np.log2(b + 1)


FULL = log_plane(*np.meshgrid(*AXES, indexing="ij"))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(1, 64), st.floats(0, 7)), min_size=1, max_size=20))
def test_interpolation_reproduces_a_plane_in_the_logarithms_of_the_axes(points: list[tuple[float, float]]) -> None:
    a, b = np.array(points).T
    place = corners(grid_of(FULL), (a, b))
    np.testing.assert_allclose(place.interpolate(FULL), log_plane(a, b), atol=1e-9)
    assert place.inside.all()


@settings(max_examples=50, deadline=None)
@given(st.floats(0.01, 1000), st.floats(0, 100))
def test_weights_are_a_mean_and_points_outside_are_clamped_and_said_to_be_outside(a: float, b: float) -> None:
    place = corners(grid_of(FULL), (a, b))
    assert (place.weights >= 0).all()
    np.testing.assert_allclose(place.weights.sum(axis=1), 1.0)
    expected = log_plane(np.array([min(max(a, 1.0), 64.0)]), np.array([min(b, 7.0)]))
    np.testing.assert_allclose(place.interpolate(FULL), expected, atol=1e-9)
    assert place.inside[0] == (1 <= a <= 64 and b <= 7)


def test_a_point_on_a_grid_value_leans_on_that_cell_alone() -> None:
    place = corners(grid_of(FULL), (np.array([8.0, 1.0]), np.array([1.0, 0.0])))
    assert place.index.shape == (2, 1)
    assert [np.unravel_index(i, FULL.shape) for i in place.index[:, 0]] == [(2, 1), (0, 0)]


def test_a_point_that_leans_on_an_unmeasured_cell_is_outside_and_its_exact_neighbours_are_not() -> None:
    latency_s = np.exp(FULL)
    latency_s[2, 1] = np.nan
    place = corners(grid_of(latency_s), (np.array([8.0, 4.0, 2.0, 64.0]), np.array([1.0, 1.0, 1.0, 7.0])))
    assert place.inside.tolist() == [False, False, True, True]


def test_scalars_broadcast_over_arrays_of_points() -> None:
    place = corners(grid_of(FULL), (np.array([1.0, 3.0, 5.0]), 2.0))
    np.testing.assert_allclose(place.interpolate(FULL), log_plane(np.array([1.0, 3.0, 5.0]), np.full(3, 2.0)))


def test_a_wrong_number_of_coordinates_is_refused() -> None:
    with pytest.raises(ValueError, match="axis0"):
        corners(grid_of(FULL), (1.0,))


def test_an_unmeasured_cell_takes_the_ratio_of_the_nearest_measured_one() -> None:
    reference_s = np.exp(FULL)
    latency_s = 2.0 * reference_s
    latency_s[0] = 5.0 * reference_s[0]
    latency_s[3, :] = np.nan
    ratio = grid_of(latency_s).filled(reference_s)
    np.testing.assert_allclose(ratio[0], np.log(5.0))
    np.testing.assert_allclose(ratio[1:], np.log(2.0))


def test_a_reference_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="shape"):
        grid_of(FULL).filled(np.ones(3))


@settings(max_examples=30, deadline=None)
@given(st.sets(st.integers(0, 11), min_size=1, max_size=12))
def test_the_nearest_measured_cell_is_at_the_least_distance_of_all_measured_ones(measured: set[int]) -> None:
    latency_s = np.full(12, np.nan)
    latency_s[list(measured)] = 1.0
    nearest = nearest_measured(AXES, latency_s.reshape(4, 3)).ravel()
    mesh = np.meshgrid(np.log2(AXES[0]), np.log2(AXES[1] + 1), indexing="ij")
    place = np.stack([m.ravel() for m in mesh], axis=1)
    for cell in range(12):
        assert nearest[cell] in measured
        least = min(np.linalg.norm(place[cell] - place[other]) for other in measured)
        assert np.linalg.norm(place[cell] - place[nearest[cell]]) == pytest.approx(least)


def test_fixing_an_axis_keeps_the_cells_of_that_value() -> None:
    fixed = grid_of(np.exp(FULL)).at("axis0", 8.0)
    assert fixed is not None
    assert fixed.axis_names == ("axis1",)
    np.testing.assert_array_equal(fixed.latency_s, np.exp(FULL)[2])
    assert grid_of(np.exp(FULL)).at("axis0", 9.0) is None


def test_the_fastest_of_two_grids_holds_the_cells_of_both_and_the_lesser_where_both_measured() -> None:
    nan = np.nan
    first = grid_of(np.array([[4.0, 2.0], [nan, 8.0]]), (np.array([1.0, 2.0]), np.array([1.0, 2.0])))
    second = grid_of(np.array([[3.0, 5.0], [6.0, nan]]), (np.array([2.0, 8.0]), np.array([1.0, 2.0])))
    both = fastest_of([first, second])
    assert [axis.tolist() for axis in both.axes] == [[1.0, 2.0, 8.0], [1.0, 2.0]]
    assert both.latency_s == pytest.approx(np.array([[4.0, 2.0], [3.0, 5.0], [6.0, nan]]), nan_ok=True)
    assert both.latency_s.ravel()[both.nearest] == pytest.approx(np.array([[4.0, 2.0], [3.0, 5.0], [6.0, 6.0]]))
