"""The chance that each limit holds: the rule of `slo.confidence` read backwards, and what explanations say of it."""

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cli.render.plan import render_plan
from planner.costs.rates.calibration import load_calibration
from planner.costs.rates.spread import NORMAL_80, ErrorSpread, all_hold
from planner.explain import explain_plan
from planner.explain.facts import Fact
from planner.kinds.serve.steady.demand import Margins
from planner.plan.schema import Decision, Envelope

Solved = Callable[[str], tuple[Envelope, Decision]]
PLAN = "serve-qwen3-32b-h200"


def chances(envelope: Envelope, decision: Decision) -> list[Fact]:
    return [fact for fact in explain_plan(envelope, decision).facts if "chance" in fact.figures]


@given(confidence=st.floats(0.5, 0.99), seen=st.booleans())
def test_limits_divided_for_a_confidence_hold_with_that_chance(confidence: float, seen: bool) -> None:
    spreads = load_calibration().spreads
    spreads = spreads if seen else {name: spread.elsewhere() for name, spread in spreads.items()}
    margins = Margins.of(confidence, spreads)
    assert spreads["tpot"].chance(margins.tpot) == pytest.approx(confidence)
    assert spreads["ttft"].chance(margins.ttft) == pytest.approx(confidence)


@given(room=st.floats(0.1, 10.0), low=st.floats(0.01, 1.0), high=st.floats(0.01, 1.0), below=st.floats(0.0, 0.5))
def test_chances_are_those_of_two_half_normals(room: float, low: float, high: float, below: float) -> None:
    spread = ErrorSpread((-low, 0.0, 0.0), (high, 0.0, 0.0), (below, 0.0)).elsewhere()
    side = high if room >= 1.0 else math.hypot(low, below)
    assert spread.chance(room) == pytest.approx(NormalDist(0.0, side / NORMAL_80).cdf(math.log(room)))
    assert [ErrorSpread().chance(limit) for limit in (0.9, 1.0, 1.1)] == [0.0, 1.0, 1.0]


@given(chances=st.lists(st.floats(0.01, 0.999), min_size=2, max_size=2), correlation=st.floats(0.0, 0.9))
def test_limits_hold_together_as_two_normals_do(chances: list[float], correlation: float) -> None:
    from scipy.stats import multivariate_normal

    levels = [NormalDist().inv_cdf(chance) for chance in chances]
    both = multivariate_normal(cov=[[1.0, correlation], [correlation, 1.0]]).cdf(levels)
    assert all_hold(chances, correlation) == pytest.approx(float(both), abs=2e-4)


def test_limits_that_are_certain_take_nothing_from_others() -> None:
    assert all_hold(()) == all_hold((1.0, 1.0)) == 1.0
    assert all_hold((0.7, 1.0)) == 0.7
    assert all_hold((0.0, 0.9, 0.9)) == 0.0
    assert all_hold((0.5, 0.6, 0.7), 0.0) == pytest.approx(0.21)


def test_every_limit_and_all_together_have_a_chance(solved: Solved) -> None:
    envelope, decision = solved(PLAN)
    facts = chances(envelope, decision)
    alone, together = facts[:-1], facts[-1]
    assert len(alone) >= 2
    assert all(0.5 <= fact.figures["chance"] < 1.0 for fact in alone), "predictions keep their limits"
    assert together.what.startswith("all limits of `chat` hold with ")
    assert together.what in render_plan(envelope, decision)
    each = [fact.figures["chance"] for fact in alone]
    assert math.prod(each) < together.figures["chance"] < min(each)


def test_tighter_limits_are_less_sure(solved: Solved) -> None:
    envelope, decision = solved(PLAN)
    before = {fact.what.split(" with ")[0]: fact.figures["chance"] for fact in chances(envelope, decision)[:-1]}
    slower = tuple(
        row.model_copy(update={"value": row.value * 1.5}) if row.metric == "tpot_s" else row
        for row in envelope.predictions
    )
    facts = chances(envelope.model_copy(update={"predictions": slower}), decision)[:-1]
    after = {fact.what.split(" with ")[0]: fact.figures["chance"] for fact in facts}
    assert before.keys() == after.keys()
    assert all(after[name] < 0.5 if name.endswith(" tpot") else after[name] == before[name] for name in after)


def test_other_costs_than_the_plans_are_said(solved: Solved) -> None:
    envelope, decision = solved(PLAN)
    digests = envelope.digests.model_copy(update={"calibration": "sha256:other"})
    changed = explain_plan(envelope.model_copy(update={"digests": digests}), decision).facts
    assert any("costs have changed since the plan" in fact.what for fact in changed)
    inputs: dict[str, Any] = {**envelope.inputs, "costs": {"calibration": "own.yaml"}}
    own = envelope.model_copy(update={"inputs": inputs})
    assert not chances(own, decision)
    assert any("not at hand" in fact.what for fact in explain_plan(own, decision).facts)
