"""Limits on any percentile: names, units, what is refused and where, and what reads them."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.documents.read import parse_document
from planner.errors import PlannerError
from planner.load.overrides import apply_overrides
from planner.problem.reads import stated
from planner.problem.slo import SloSpec
from planner.problem.statistics import quantile_of
from planner.schema.base import Where
from planner.schema.keys import validated
from planner.simulate.run.attainment import required


def limits(**slo: object) -> list[tuple[str, str, float]]:
    return list(validated(SloSpec, slo, Where({}, "problem.yaml")).limits())


def test_any_percentile_is_read_with_its_unit_and_by_its_si_name() -> None:
    expected = [("ttft", "mean", 0.02), ("ttft", "p97.5", 0.3), ("ttft", "p99", 0.5), ("ttft", "p99.9", 1.0)]
    assert limits(ttft={"p99.9": "1s", "p99": "500ms", "p97.5_s": 0.3, "mean_s": 0.02}) == expected


def test_a_percentile_has_one_name() -> None:
    assert limits(tpot={"p97.50": "30ms"}) == [("tpot", "p97.5", 0.03)]
    assert limits(tpot={"p95.0": "30ms"}) == limits(tpot="30ms") == [("tpot", "p95", 0.03)]


@pytest.mark.parametrize(
    ("limit", "place", "what"),
    [
        ({"p100": "1s"}, "ttft.p100", "above 0 and below 100, found `p100`"),
        ({"p0": "1s"}, "ttft.p0", "above 0 and below 100, found `p0`"),
        ({"p250_s": 1.0}, "ttft.p250_s", "above 0 and below 100"),
        ({"p99.9": 5}, "ttft.p99.9", 'such as "200ms", found 5'),
        ({"p99.9_s": "5s"}, "ttft.p99.9_s", "must be a number of seconds, found '5s'"),
        ({"p99.9": "0s"}, "ttft.p99.9", "must be above 0"),
        ({"p99.9_s": math.inf}, "ttft.p99.9_s", "must be above 0"),
        ({"mena": "1s"}, "ttft.mena", "`mena` is no statistic"),
        ({"p99.0": "1s", "p99": "2s"}, "ttft.p99.0", "given twice"),
        ({"p99.9": "1s", "p99.90": "2s"}, "ttft.p99.90", "given twice"),
        ({}, "ttft", "names the mean or a percentile"),
        ({"p99.9": None}, "ttft", "names the mean or a percentile"),
    ],
)
def test_what_is_no_limit_is_refused_at_its_place(limit: dict[str, Any], place: str, what: str) -> None:
    with pytest.raises(PlannerError, match=what.replace(".", r"\.")) as caught:
        limits(ttft=limit)
    assert str(caught.value).startswith(f"problem.yaml: {place}: ")
    assert "hint: " in str(caught.value)


@given(st.floats(min_value=1e-6, max_value=100.0 - 1e-6), st.floats(min_value=1e-6, max_value=1e3))
def test_limits_survive_being_written_down(percent: float, bound_s: float) -> None:
    slo = SloSpec.model_validate({"tpot": {f"p{percent:.6f}_s": bound_s}})
    assert SloSpec.model_validate(slo.model_dump(mode="json", exclude_none=True)) == slo
    ((_, name, value),) = slo.limits()
    quantile = quantile_of(name)
    assert quantile is not None
    assert quantile == pytest.approx(percent / 100.0, abs=1e-8)
    assert value == bound_s


def test_overrides_reach_a_percentile_with_a_point() -> None:
    document = parse_document("workloads: [{slo: {ttft: {p99.9: 2s}}}]", "problem.yaml")
    overridden = apply_overrides(
        document, ["slo.ttft.p99.9=1s", "workloads.0.slo.tpot.p97.5=30ms"], each_workload=["slo"]
    )
    assert overridden.data["workloads"][0]["slo"] == {"ttft": {"p99.9": "1s"}, "tpot": {"p97.5": "30ms"}}


def test_what_a_kind_does_not_read_is_named_for_any_percentile() -> None:
    paths = list(stated(SloSpec.model_validate({"ttft": {"p99.9": "1s"}})))
    assert paths == [("ttft", "p99.9_s")]


def test_a_percentile_asks_for_its_share() -> None:
    (requirement,) = required(SloSpec.model_validate({"ttft": {"p99.9": "1s"}}))
    assert (requirement.share, requirement.ttft_s) == (0.999, 1.0)
    assert np.isinf(requirement.tpot_s)
