"""How sure limits are kept where the problem does not say, against solves at each confidence by themselves."""

from typing import Any

import pytest
from serve_problems import broken_rules, objective_of, small
from static_level import solve

from planner.alternatives.ranking import alternatives
from planner.costs.rates.spread import all_hold
from planner.costs.serving.chances import chances_of
from planner.diff import diff_plans
from planner.documents.units import format_si
from planner.errors import Infeasible
from planner.explain.explanation import explain_plan
from planner.explain.facts import NEAR
from planner.explain.limits import stated_limits
from planner.explain.stated import confidence_text, limit_facts
from planner.kinds.serve.by_default import CONFIDENCES, DEFAULT_CONFIDENCE, solved_by_default
from planner.kinds.serve.options import ServeDecision
from planner.kinds.serve.proof.stated import setting_of_plan
from planner.kinds.serve.steady.search import ServeSetting
from planner.plan.schema import Certificate, Envelope
from planner.problem.confidence import BY_ESTIMATE
from planner.problem.recorded import recorded_problem
from planner.problem.resolve import Resolved, normalised
from planner.progress import Limits

UNSAID = {"objective.expected": None}
LOOSE = {"workloads.0.slo": {"ttft": "2s", "tpot": "12ms"}}
FEWEST = {"objective": {"minimize": "gpus"}, "workloads.0.load": {"rate": "9/s"}, "cluster.pools.0.gpus": 16}
TPOT_MS = (4.0, 4.1, 4.2, 4.4, 4.6, 10.0)
"""From a limit that nothing keeps, by those that nothing keeps with so much, to one that costs much to keep so."""


def _by_default(edits: dict[str, Any]) -> Envelope:
    return solve(small(edits | UNSAID))


def _text(certificate: Certificate) -> str:
    assert certificate.confidence is not None
    return confidence_text(certificate, certificate.confidence)


def _at(edits: dict[str, Any], confidence: float) -> Envelope | None:
    try:
        return solve(small(edits | {"workloads.0.slo.confidence": confidence}), Limits(explain=False))
    except Infeasible:
        return None


def _expected(edits: dict[str, Any]) -> tuple[float, float] | None:
    """The confidence that the rule comes to, from the definition, and the objective at it; None where no plan keeps
    the limits at all."""
    plans = {confidence: _at(edits, confidence) for confidence in (*CONFIDENCES, BY_ESTIMATE)}
    kept = {confidence: plan for confidence, plan in plans.items() if plan is not None}
    if not kept:
        return None
    sure = next(iter(kept))

    def worth(confidence: float, held: float) -> float:
        value = objective_of(kept[confidence])
        return -value / held if "objective" in edits else held * value

    more = all(
        worth(BY_ESTIMATE, held) > worth(sure, _both_hold(kept[sure]))
        for held in (all_hold((0.5, 0.5)), _both_hold(kept[BY_ESTIMATE]))
    )
    wanted = BY_ESTIMATE if more else sure
    return wanted, objective_of(kept[wanted])


def _both_hold(plan: Envelope) -> float:
    least = {"ttft_s": 1.0, "tpot_s": 1.0}
    for sure in chances_of(plan, ServeDecision.model_validate(plan.decision)):
        least[sure.prediction.metric] = min(sure.chance, least[sure.prediction.metric])
    return all_hold(tuple(least.values()))


@pytest.mark.parametrize("edits", [LOOSE, LOOSE | FEWEST])
def test_limits_are_kept_as_if_the_confidence_were_stated(edits: dict[str, Any]) -> None:
    plan = _by_default(edits)
    stated = solve(small(edits | {"workloads.0.slo.confidence": DEFAULT_CONFIDENCE}))
    decision = ServeDecision.model_validate(plan.decision)
    assert plan.decision == stated.decision
    assert plan.certificate.objective == stated.certificate.objective
    assert plan.assumptions == stated.assumptions
    assert not broken_rules(plan)
    assert all(sure.chance >= DEFAULT_CONFIDENCE - 1e-9 for sure in chances_of(plan, decision))
    (by_estimate,) = plan.certificate.confidences
    assert by_estimate.objective == pytest.approx(objective_of(solve(small(edits))))
    assert _text(plan.certificate) in [fact.what for fact in explain_plan(plan, decision).facts]


@pytest.mark.parametrize("beside", [{}, FEWEST], ids=["most", "least"])
def test_a_preference_gives_way_where_it_has_no_plan_or_is_not_worth_its_price(beside: dict[str, Any]) -> None:
    came_to = []
    for tpot_ms in TPOT_MS:
        edits = {"workloads.0.slo": {"ttft": "2s", "tpot": f"{tpot_ms}ms"}} | beside
        expected = _expected(edits)
        came_to.append(None if expected is None else expected[0])
        if expected is None:
            with pytest.raises(Infeasible) as told:
                _by_default(edits)
            with pytest.raises(Infeasible) as as_it_stands:
                solve(small(edits))
            assert told.value.conflict == as_it_stands.value.conflict
        else:
            plan = _by_default(edits)
            wanted, value = expected
            assert plan.certificate.confidence == wanted
            assert objective_of(plan) == pytest.approx(value)
            assert not broken_rules(plan)
            given = normalised(small(edits | UNSAID))  # whatever confidence was chosen
            assert {**plan.inputs, "options": {}} == {**given, "options": {}}  # of which the level is the test's
    assert set(came_to) == {None, BY_ESTIMATE, *CONFIDENCES}


@pytest.mark.parametrize(
    "edits",
    [
        {"objective.expected": False},
        {"workloads.0.slo.confidence": 0.5},
        {"workloads.0.slo": {}},
        {"costs": {"calibration": "none"}},
    ],
)
def test_what_is_said_or_cannot_be_kept_has_no_default(edits: dict[str, Any]) -> None:
    assert solve(small(UNSAID | edits)).certificate.confidence is None


def test_alternatives_keep_their_limits_as_the_best_does() -> None:
    best, *others = alternatives(small(LOOSE | UNSAID), 3, Limits()).plans
    assert best.certificate.confidence == DEFAULT_CONFIDENCE
    assert len(others) == 2
    for other in others:
        assert other.certificate.confidence == DEFAULT_CONFIDENCE
        assert f"for a confidence of {DEFAULT_CONFIDENCE:g}" in " ".join(other.assumptions)
        assert objective_of(other) <= objective_of(best) * (1 + 1e-9)
        assert not broken_rules(other)
        told = diff_plans(*((plan, ServeDecision.model_validate(plan.decision)) for plan in (best, other)))
        assert not [change.path for change in told.inputs if change.path.startswith("workloads")]


def test_another_confidence_than_that_of_the_limits_is_seen() -> None:
    plan = _by_default(LOOSE)
    altered = plan.certificate.model_copy(update={"confidence": CONFIDENCES[-1]})
    rules = [finding.rule for finding in broken_rules(plan.model_copy(update={"certificate": altered}))]
    assert "restated.evidence" in rules
    stated = solve(small(LOOSE | UNSAID | {"workloads.0.slo.confidence": DEFAULT_CONFIDENCE}))
    altered = stated.certificate.model_copy(update={"confidence": DEFAULT_CONFIDENCE})
    rules = [finding.rule for finding in broken_rules(stated.model_copy(update={"certificate": altered}))]
    assert "certificate.confidence" in rules


def test_a_plan_is_priced_again_at_the_confidence_that_was_chosen() -> None:
    plan = _by_default(LOOSE)
    problem, (margins,) = recorded_problem(plan.inputs), plan.evidence.margins
    assert problem is not None
    setting = setting_of_plan(plan, problem, "serve.drafts")
    assert isinstance(setting, ServeSetting)
    assert (setting.targets[0].margins.ttft, setting.targets[0].margins.tpot) == (margins.ttft, margins.tpot)


def test_limits_bind_by_what_they_are_held_to() -> None:
    plan = _by_default(LOOSE)
    (margins,), limit_s = plan.evidence.margins, 0.012
    held_to_s = limit_s / margins.tpot
    near = tuple(
        row.model_copy(update={"value": NEAR * held_to_s}) for row in plan.predictions if row.metric == "tpot_s"
    )
    plan = plan.model_copy(update={"predictions": near})
    (told,) = limit_facts(plan)
    assert (told.topic, told.figures["limit_s"]) == ("binding", limit_s)
    assert f"{format_si(limit_s, 's')}, held to {format_si(held_to_s, 's')} to be kept with 70%" in told.what
    (shown,) = (limit for limit in stated_limits(plan) if limit.metric == "tpot_s")
    assert (shown.bound, shown.held_to) == (limit_s, held_to_s)
    as_it_stands = plan.evidence.model_copy(update={"margins": ()})
    (told,) = limit_facts(plan.model_copy(update={"evidence": as_it_stands}))
    assert told.topic == "limit"


@pytest.mark.parametrize("beside", [{}, FEWEST], ids=["most", "least"])
def test_limits_are_taken_as_they_stand_where_more_is_expected_of_that(beside: dict[str, Any]) -> None:
    edits = {"workloads.0.slo": {"ttft": "2s", "tpot": "4.6ms"}} | beside | UNSAID
    assert solve(small(edits)).certificate.confidence == DEFAULT_CONFIDENCE
    plan = solved_by_default(small(edits), Limits(), _sure_for_a_quarter)
    (instead,) = plan.certificate.confidences
    assert plan.certificate.confidence == BY_ESTIMATE
    assert f"of which more is expected than of {instead.objective:.3g}" in _text(plan.certificate)


def test_where_formulas_promised_a_plan_and_there_is_none_the_record_says_so() -> None:
    edits = {"workloads.0.slo": {"ttft": "2s", "tpot": "4.6ms"}} | UNSAID

    def solve_sure(resolved: Resolved, limits: Limits) -> Envelope:
        if resolved.confidence == BY_ESTIMATE:
            raise Infeasible([], proved=False)
        return _sure_for_a_quarter(resolved, limits)

    plan = solved_by_default(small(edits), Limits(), solve_sure)
    assert plan.certificate.confidence == DEFAULT_CONFIDENCE
    assert [(each.confidence, each.objective) for each in plan.certificate.confidences] == [(BY_ESTIMATE, None)]
    assert "no plan was found with 50%" in _text(plan.certificate)


def _sure_for_a_quarter(resolved: Resolved, limits: Limits) -> Envelope:
    """The best plan; sure of its limits, one that is said to be worth a quarter of it."""
    plan = solve(resolved, limits)
    if resolved.confidence == BY_ESTIMATE:
        return plan
    objective = plan.certificate.objective
    assert objective.value is not None
    value = objective.value * (0.25 if objective.sense == "maximize" else 4.0)
    worth = objective.model_copy(update={"value": value})
    return plan.model_copy(update={"certificate": plan.certificate.model_copy(update={"objective": worth})})


def test_all_searches_together_have_the_time_of_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, given = [100.0], list[float | None]()

    def infeasible(resolved: Resolved, limits: Limits) -> Envelope:
        given.append(limits.time_limit_s)
        now_s[0] += 4.0
        raise Infeasible([], proved=True)

    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    with pytest.raises(Infeasible):
        solved_by_default(small(LOOSE | UNSAID), Limits(time_limit_s=7.0), infeasible)
    assert given == [7.0, 3.0, pytest.approx(0.1)]
