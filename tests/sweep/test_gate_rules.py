"""Rules of a gate: what is written is what is judged."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.sweep.rules import GateRule, parse_rule

COMPARISONS = st.sampled_from([">", ">=", "<", "<="])
AMOUNTS = st.floats(0, 1e6).map(lambda amount: float(f"{amount:.6g}"))
POSITIVE = st.floats(1e-6, 1e6)


@given(COMPARISONS, AMOUNTS, st.sampled_from(["", "+", "-"]), st.booleans(), st.sampled_from(["", "busy hour"]))
def test_a_rule_means_what_it_says(comparison: str, amount: float, sign: str, percent: bool, scenario: str) -> None:
    if percent and not sign:
        sign = "+"
    prefix = f"{scenario}: " if scenario else ""
    rule = parse_rule(f"{prefix}usd_per_mtok {comparison} {sign}{amount!r}{'%' if percent else ''}")
    value = -amount if sign == "-" else amount
    assert (rule.scenario, rule.metric, rule.comparison) == (scenario or None, "usd_per_mtok", comparison)
    assert rule.amount == pytest.approx(value / 100 if percent else value)
    assert rule.measure == ("relative" if percent else "change" if sign else "level")


@given(st.text(max_size=40))
def test_any_text_is_a_rule_or_a_named_error(text: str) -> None:
    try:
        outcome: GateRule | PlannerError = parse_rule(text)
    except PlannerError as error:
        outcome = error
    if isinstance(outcome, GateRule):
        assert math.isfinite(outcome.amount)
    else:
        assert outcome.where == "--fail-on"
        assert outcome.hint


@pytest.mark.parametrize(
    ("text", "amount", "measure"),
    [
        ("cost_per_mtok > +3%", 0.03, "relative"),
        ("goodput_per_gpu<-2.5%", -0.025, "relative"),
        ("ttft_s > 200ms", 0.2, "level"),
        ("ttft_s >= +20ms", 0.02, "change"),
        ("usd_per_hour > 10USD/h", 10.0, "level"),
        ("gpus > +0", 0.0, "change"),
    ],
)
def test_amounts_have_units_and_signs(text: str, amount: float, measure: str) -> None:
    rule = parse_rule(text)
    assert rule.amount == pytest.approx(amount)
    assert rule.measure == measure


@pytest.mark.parametrize("text", ["", "cost", "cost > ", "> 3", "cost = 3", "cost > 3%", "cost > nan", "cost > +1e999"])
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(PlannerError):
        parse_rule(text)


def test_aliases_mean_their_metric() -> None:
    assert parse_rule("cost_per_mtok > +3%").metric == "usd_per_mtok"


def rule_of(comparison: str, amount: float) -> GateRule:
    return parse_rule(f"gpus {comparison} {amount:+.6f}%")


@given(st.floats(-50, 50), POSITIVE, POSITIVE, POSITIVE)
def test_a_dearer_point_never_passes_where_a_cheaper_one_fails(
    percent: float, before: float, now: float, more: float
) -> None:
    rule = rule_of(">", percent)
    low, high = rule.measured(now, before), rule.measured(now + more, before)
    assert low is not None
    assert high is not None
    assert not rule.fails(low) or rule.fails(high)


@given(COMPARISONS, st.floats(-50, 50), POSITIVE, POSITIVE, st.integers(-20, 20))
def test_relative_rules_do_not_depend_on_the_unit(
    comparison: str, percent: float, before: float, now: float, exponent: int
) -> None:
    rule, scale = rule_of(comparison, percent), 2.0**exponent
    plain, scaled = rule.measured(now, before), rule.measured(now * scale, before * scale)
    assert plain == scaled


@given(st.floats(-50, 50), POSITIVE, POSITIVE)
def test_a_rule_and_its_opposite_never_both_fail_or_both_pass(percent: float, before: float, now: float) -> None:
    over, under = rule_of(">", percent), rule_of("<=", percent)
    measured = over.measured(now, before)
    assert measured is not None
    assert over.fails(measured) is not under.fails(measured)


def test_something_from_nothing_is_an_endless_change_and_nothing_from_nothing_is_none() -> None:
    rule = rule_of(">", 3)
    assert rule.measured(1.0, 0.0) == math.inf
    assert rule.measured(0.0, 0.0) == 0.0
