"""Every shipped parameter of training costs lies within physical bounds, each with a source."""

import csv
from importlib import resources

import pytest

from planner.costs.training.physics.bounds import BY_KIND, bound_of, bounds
from planner.costs.training.rates import default_rates


def test_every_shipped_parameter_is_inside_its_bounds() -> None:
    values = default_rates().values
    assert [name for name, value in values.items() if not bound_of(name).holds(value)] == []


def test_every_row_names_a_parameter_and_says_who_bounds_it() -> None:
    known = set(default_rates().values)
    kinds = {name.partition(".")[0] for name in known}
    for name, bound in bounds().items():
        assert name in known or (name in BY_KIND and name in kinds)
        assert 0.0 <= bound.lower <= bound.upper
        assert bound.unit
        assert len(bound.source) > 8


def test_no_parameter_has_two_rows() -> None:
    text = resources.files("planner.costs.training.physics").joinpath("bounds.csv").read_text(encoding="utf-8")
    names = [row["name"] for row in csv.DictReader(text.splitlines())]
    assert len(names) == len(set(names))


def test_a_parameter_without_a_row_has_no_bound() -> None:
    assert not bound_of("host_launch_s.eager").holds(1e-3)
    with pytest.raises(KeyError):
        bound_of("start.dispatch.plain")
