"""The confidence of most output in expectation, against a search at every confidence, and what is said of it."""

from dataclasses import replace
from typing import Any

import pytest
from serve_problems import broken_rules, small
from static_level import solve

from planner.alternatives.ranking import alternatives
from planner.costs.serving.chances import chances_of
from planner.errors import Infeasible, PlannerError
from planner.explain.explanation import explain_plan
from planner.explain.stated import confidence_text
from planner.kinds.serve.expected import CONFIDENCES
from planner.kinds.serve.options import ServeDecision
from planner.plan.schema import Envelope
from planner.problem.confidence import BY_ESTIMATE
from planner.problem.resolve import normalised
from planner.progress import Limits

EXPECTED = {"objective.expected": True}
PROBLEMS: dict[str, dict[str, Any]] = {
    "loose": {"workloads.0.slo": {"ttft": "2s", "tpot": "40ms"}},
    "tight": {"workloads.0.slo": {"ttft": "400ms", "tpot": "9ms"}},
    "tokens": {"workloads.0.slo": {"tpot": "12ms"}, "objective.maximize": "tokens_per_s_per_gpu"},
    "a stated rate": {"workloads.0.slo": {"ttft": "1s", "tpot": "15ms"}, "workloads.0.load": {"rate": "3/s"}},
}


@pytest.fixture(scope="module")
def plans() -> dict[str, Envelope]:
    return {name: solve(small(edits | EXPECTED)) for name, edits in PROBLEMS.items()}


def _worth(edits: dict[str, Any], confidence: float) -> float:
    """Confidence times objective of the plan at it; 0 where there is none."""
    try:
        objective = solve(replace(small(edits), confidence=confidence), Limits(explain=False)).certificate.objective
    except Infeasible:
        return 0.0
    assert objective.value is not None
    return confidence * objective.value


@pytest.mark.parametrize("name", PROBLEMS)
def test_no_confidence_expects_more(name: str, plans: dict[str, Envelope]) -> None:
    stated, chosen = plans[name].certificate.expected, plans[name].certificate.confidence
    assert stated is not None
    assert chosen is not None
    assert stated.bound is not None
    every = {confidence: _worth(PROBLEMS[name], confidence) for confidence in CONFIDENCES}
    assert stated.value == pytest.approx(max(every.values()), rel=1e-6)
    assert every[chosen] == pytest.approx(stated.value, rel=1e-6)
    assert all(worth <= stated.bound * (1 + 1e-9) for worth in every.values())


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_plan_keeps_each_limit_with_its_confidence_and_passes_every_check(
    name: str, plans: dict[str, Envelope]
) -> None:
    plan = plans[name]
    chosen, decision = plan.certificate.confidence, ServeDecision.model_validate(plan.decision)
    assert chosen is not None
    assert not broken_rules(plan)
    assert all(sure.chance >= chosen - 1e-9 for sure in chances_of(plan, decision))
    assert confidence_text(plan.certificate, chosen) in [fact.what for fact in explain_plan(plan, decision).facts]


def test_alternatives_are_ranked_at_the_confidence_of_the_best(plans: dict[str, Envelope]) -> None:
    given = small(PROBLEMS["tokens"] | EXPECTED)
    best, *others = alternatives(given, 3, Limits()).plans
    chosen, worth = best.certificate.confidence, best.certificate.objective.value
    assert chosen is not None
    assert best.certificate.expected == plans["tokens"].certificate.expected
    for other in others:
        assert other.certificate.confidence == chosen
        assert f"for a confidence of {chosen:g}" in " ".join(other.assumptions)
        assert {**other.inputs, "options": {}} == {**normalised(given), "options": {}}, "the problem as it was given"
        assert not broken_rules(other)
        assert worth is not None
        assert other.certificate.objective.value is not None
        assert other.certificate.objective.value <= worth * (1 + 1e-9)


def test_where_nothing_keeps_limits_so_surely_the_estimate_is_taken() -> None:
    low_s, high_s = 0.002, 0.006
    while high_s - low_s > 0.03 * high_s:
        middle_s = 0.5 * (low_s + high_s)
        low_s, high_s = (low_s, middle_s) if _worth(_within(middle_s), BY_ESTIMATE) > 0.0 else (middle_s, high_s)
    certificate = solve(small(_within(high_s) | EXPECTED)).certificate
    stated = certificate.expected
    assert stated is not None
    assert certificate.confidence == BY_ESTIMATE
    assert stated.value == pytest.approx(_worth(_within(high_s), BY_ESTIMATE))
    with pytest.raises(Infeasible):
        solve(small(_within(low_s) | EXPECTED))


def _within(tpot_s: float) -> dict[str, Any]:
    return {"workloads.0.slo": {"tpot": f"{1e3 * tpot_s}ms"}}


@pytest.mark.parametrize(
    ("edits", "said"),
    [
        (
            {"objective": {"minimize": "gpus", "expected": True}, "workloads.0.load": {"rate": "1/s"}},
            "rate is maximised",
        ),
        ({"workloads.0.slo.confidence": 0.8} | EXPECTED, "states its confidence"),
        ({"workloads.0.slo": {}} | EXPECTED, "states a limit"),
        ({"costs": {"calibration": "none"}} | EXPECTED, "no confidence can be kept"),
    ],
)
def test_what_expects_nothing_is_refused(edits: dict[str, Any], said: str) -> None:
    with pytest.raises(PlannerError, match=said):
        solve(small(edits))


@pytest.mark.parametrize(("field", "value"), [("value", 99.0), ("bound", 0.0)])
def test_an_altered_expectation_is_seen(field: str, value: float, plans: dict[str, Envelope]) -> None:
    plan = plans["loose"]
    expected = plan.certificate.expected
    assert expected is not None
    altered = expected.model_copy(update={field: value})
    certificate = plan.certificate.model_copy(update={"expected": altered})
    rules = [finding.rule for finding in broken_rules(plan.model_copy(update={"certificate": certificate}))]
    assert "certificate.expected" in rules


def test_another_confidence_than_the_one_that_was_chosen_is_seen(plans: dict[str, Envelope]) -> None:
    plan = plans["loose"]
    certificate = plan.certificate.model_copy(update={"confidence": 0.6})
    rules = {finding.rule for finding in broken_rules(plan.model_copy(update={"certificate": certificate}))}
    assert {"certificate.expected", "restated.evidence"} <= rules
