"""Axes: values, ranges, units, samples and the points made of them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.documents.read import parse_document
from planner.errors import PlannerError
from planner.schema.base import Where
from planner.sweep.axes import SweepAxis, list_points, make_axes
from planner.sweep.fields import assignments
from planner.sweep.schema import SweepSpec

NOWHERE = Where({}, "sweep.yaml")


def spec_of(axes: str, more: str = "") -> SweepSpec:
    return SweepSpec.model_validate(parse_document(f"{{base: p.yaml, axes: [{axes}]{more}}}", "sweep.yaml").data)


def axis_of(text: str) -> SweepAxis:
    return make_axes(spec_of(text), NOWHERE)[0]


def cells(axis: SweepAxis) -> list[object]:
    return [value.cell for value in axis.values]


def test_quantities_are_shown_in_si_units_and_set_as_written() -> None:
    axis = axis_of("{field: slo.ttft, values: [200ms, 1s]}")
    assert (axis.column, axis.kind, cells(axis)) == ("slo.ttft_s", "number", [0.2, 1.0])
    assert axis.values[0].sets == (("slo.ttft", "200ms"),)


def test_values_of_different_kinds_of_unit_are_text() -> None:
    assert axis_of("{field: load.rate, values: [2/s, 3ms]}").kind == "text"


def test_what_is_given_does_not_take_the_name_of_what_comes_out() -> None:
    assert axis_of("{field: ttft, values: [1s]}").column == "given_ttft_s"
    assert axis_of("{field: gpus, values: [8]}").column == "given_gpus"


def test_a_range_between_whole_numbers_has_whole_values_without_repeats() -> None:
    assert cells(axis_of("{field: gpus, from: 8, to: 64, steps: 4, log: true}")) == [8, 16, 32, 64]
    assert cells(axis_of("{field: gpus, from: 1, to: 3, steps: 9}")) == [1, 2, 3]


def test_the_ends_of_a_range_may_have_different_units_of_one_kind() -> None:
    axis = axis_of("{field: slo.ttft, from: 500ms, to: 2s, steps: 4}")
    assert cells(axis) == pytest.approx([0.5, 1.0, 1.5, 2.0])


@given(
    st.floats(1e-3, 1e3),
    st.floats(1e-3, 1e3),
    st.integers(2, 40),
    st.booleans(),
    st.sampled_from(["ms", "/s", "", "h"]),
)
def test_a_range_is_monotone_and_holds_its_ends(low: float, high: float, steps: int, log: bool, unit: str) -> None:
    if f"{low:.12g}" == f"{high:.12g}":
        return
    ends = (f"{low!r}{unit}", f"{high!r}{unit}") if unit else (repr(low), repr(high))
    axis = axis_of(f"{{field: x, from: {ends[0]}, to: {ends[1]}, steps: {steps}, log: {str(log).lower()}}}")
    cells = [float(value.cell) for value in axis.values]
    factor = {"ms": 1e-3, "/s": 1.0, "": 1.0, "h": 3600.0}[unit]
    assert cells[0] == pytest.approx(low * factor)
    assert cells[-1] == pytest.approx(high * factor)
    assert cells == sorted(cells, reverse=low > high)


@given(st.floats(1e-3, 1e3), st.sampled_from(["ms", "USD/h", "/min", ""]))
def test_the_value_at_a_cell_has_that_cell(amount: float, unit: str) -> None:
    axis = axis_of(f"{{field: x, values: [1.5{unit}, 2.5{unit}]}}")
    assert axis.at(amount).cell == pytest.approx(amount, rel=1e-9)


@pytest.mark.parametrize(
    ("axis", "words"),
    [
        ("{field: x, from: 1/s, to: 2ms, steps: 3}", "different units"),
        ("{field: x, from: 1, to: 2ms, steps: 3}", "different units"),
        ("{field: x, from: 0, to: 2, steps: 3, log: true}", "above 0"),
        ("{field: x, from: 2, to: 2, steps: 3}", "to itself"),
        ("{field: x, from: 1, to: 2}", "`steps`"),
        ("{field: x, from: fast, to: 2, steps: 2}", "number or a quantity"),
        ("{field: x, values: [1]}, {name: x, field: y, values: [1]}", "same name"),
    ],
)
def test_axes_that_mean_nothing_are_refused(axis: str, words: str) -> None:
    with pytest.raises((PlannerError, ValueError), match=words):
        make_axes(spec_of(axis), NOWHERE)


def test_a_grid_runs_the_last_axis_fastest() -> None:
    spec = spec_of("{field: a, values: [1, 2]}, {field: b, values: [3, 4]}", ", scenarios: [{name: s}, {name: t}]")
    points = list_points(spec, make_axes(spec, NOWHERE), NOWHERE)
    cells = [(point.scenario, *(value.cell for value in point.values)) for point in points]
    assert cells == [(s, a, b) for s in (0, 1) for a in (1, 2) for b in (3, 4)]


def test_a_zip_pairs_values_and_refuses_unequal_lengths() -> None:
    spec = spec_of("{field: a, values: [1, 2]}, {field: b, values: [3, 4]}", ", mode: zip")
    points = list_points(spec, make_axes(spec, NOWHERE), NOWHERE)
    assert [tuple(value.cell for value in point.values) for point in points] == [(1, 3), (2, 4)]
    spec = spec_of("{field: a, values: [1]}, {field: b, values: [3, 4]}", ", mode: zip")
    with pytest.raises(PlannerError, match="cannot be zipped"):
        list_points(spec, make_axes(spec, NOWHERE), NOWHERE)


@given(st.integers(1, 60), st.integers(0, 2**31))
def test_samples_put_one_value_into_every_stratum_of_every_axis(count: int, seed: int) -> None:
    axes = "{field: a, from: 1.0, to: 2.0, steps: 2}, {field: b, from: 10.0, to: 1000.0, steps: 2, log: true}"
    spec = spec_of(axes, f", mode: sample, samples: {count}, seed: {seed}")
    points = list_points(spec, make_axes(spec, NOWHERE), NOWHERE)
    linear = sorted(int((float(point.values[0].cell) - 1) * count + 1e-9) for point in points)
    ratios = sorted(int(math.log10(float(point.values[1].cell) / 10) / 2 * count + 1e-9) for point in points)
    assert linear == ratios == list(range(count))


def test_samples_depend_on_the_seed_alone() -> None:
    def sampled(seed: int) -> object:
        spec = spec_of("{field: a, from: 1.0, to: 9.0, steps: 2}", f", mode: sample, samples: 5, seed: {seed}")
        return list_points(spec, make_axes(spec, NOWHERE), NOWHERE)

    assert sampled(1) == sampled(1)
    assert sampled(1) != sampled(2)


def test_more_points_than_a_sweep_may_have_are_refused_before_they_are_made() -> None:
    axes = ", ".join(f"{{field: a{index}, from: 0.0, to: 1.0, steps: 10000}}" for index in range(3))
    spec = spec_of(axes)
    with pytest.raises(PlannerError, match="more than"):
        list_points(spec, make_axes(spec, NOWHERE), NOWHERE)


DATA = {"models": {"m": {}}, "cluster": {"pools": [{"gpu": "h200", "gpus": 8}]}}


def test_short_names_clear_what_they_replace() -> None:
    assert assignments("nodes", 2, DATA, "") == [("cluster.pools.0.gpus", None), ("cluster.pools.0.nodes", 2)]
    assert assignments("rate", "2/s", DATA, "") == [("load.concurrency", None), ("load.rate", "2/s")]
    assert assignments("lost_nodes", 2, DATA, "") == [("cluster.pools.0.out_of_service", [0, 1])]
    assert assignments("mode", "colocated", DATA, "") == [("options.modes", ["colocated"])]
    assert assignments("model", "x", DATA, "") == [("models.m.config", None), ("models.m.name", "x")]


def test_short_names_that_could_mean_several_things_are_refused() -> None:
    two = {"models": {"m": {}, "n": {}}, "cluster": {"pools": [{}, {}]}}
    for name in ("gpu", "model"):
        with pytest.raises(PlannerError, match="2 "):
            assignments(name, "x", two, "")
