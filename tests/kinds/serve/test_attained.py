"""Percentiles of whole requests and the share that keeps all limits, against enumeration and the simulator."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serve_problems import small
from static_level import solve

from planner.arrays import Floats
from planner.kinds.serve.options import ServeDecision
from planner.kinds.serve.steady.attained import Outputs, Pace, least_time_s
from planner.kinds.serve.steady.steps.first_tokens import FirstTokens
from planner.problem.lengths import LengthFacts
from planner.problem.schema import MomentLengths, UniformLengths
from planner.simulate.plans.setting import Policies
from planner.simulate.plans.simulation import Traffic, simulate_plan
from planner.solvers.stochastic.gap_averages import Answers, GapAverages

TIMES = st.floats(0.01, 5.0)


def pace_of(mean_s: float, deviation_s: float) -> Pace:
    """As of answers of 2 and 1,000 tokens, which spread alike."""
    spread = GapAverages(np.full((1, 2), mean_s), np.full((1, 2), deviation_s))
    return Pace((spread,), Answers((2.0, 1000.0), 0.0, 0.0, 1.0))


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_shares_of_requests_in_time_are_those_that_are_counted(data: st.DataObject) -> None:
    tokens = data.draw(st.lists(st.integers(1, 50), min_size=1, max_size=5, unique=True).map(sorted))
    weights = np.array(data.draw(st.lists(st.floats(0.1, 1.0), min_size=len(tokens), max_size=len(tokens))))
    firsts = np.array(data.draw(st.lists(TIMES, min_size=1, max_size=6)))
    tpot_s, ttft_s, latency_s = data.draw(st.floats(0.01, 0.2)), data.draw(TIMES), data.draw(st.floats(0.01, 15.0))
    outputs = Outputs(tuple(float(length) for length in tokens), tuple((weights / weights.sum()).tolist()))

    def within(limit_s: Floats) -> Floats:
        return np.asarray(np.mean(firsts[:, None, None] <= limit_s, axis=0))

    pace = pace_of(tpot_s, 0.0)
    ends = firsts[None, :] + (np.array(tokens)[:, None] - 1.0) * tpot_s
    each = (weights / weights.sum())[:, None] / len(firsts)
    near = np.abs(ends - latency_s).min() < 1e-9 or np.abs(firsts - ttft_s).min() < 1e-9
    if not near:
        assert outputs.share_within(within, pace, latency_s)[0] == pytest.approx((each * (ends <= latency_s)).sum())
        both = (ends <= latency_s) & (firsts[None, :] <= ttft_s)
        assert outputs.share_keeping(within, pace, ttft_s, latency_s)[0] == pytest.approx((each * both).sum())
        assert outputs.share_keeping(within, pace, ttft_s, math.inf)[0] == pytest.approx(np.mean(firsts <= ttft_s))
    whole = least_time_s(lambda time_s: float(outputs.share_within(within, pace, time_s)[0]), 0.5, 1.0)
    order = np.argsort(ends.ravel())
    shares = np.cumsum(np.broadcast_to(each, ends.shape).ravel()[order])
    lowest, highest = (ends.ravel()[order][np.searchsorted(shares, 0.5 + slack)] for slack in (-1e-9, 1e-9))
    assert lowest * (1.0 - 1e-6) <= whole <= highest * (1.0 + 1e-6)


@pytest.mark.parametrize("lengths", [(200.0,), (20.0, 150.0, 400.0)])
def test_whole_requests_spread_with_their_own_pace(lengths: tuple[float, ...]) -> None:
    rng, size = np.random.default_rng(2), 200_000
    outputs = Outputs(lengths, (1.0 / len(lengths),) * len(lengths))
    drawn = 0.5 * rng.exponential(size=size) + (rng.choice(lengths, size) - 1.0) * rng.normal(0.02, 0.002, size)

    def within(limit_s: Floats) -> Floats:
        share: Floats = -np.expm1(-np.maximum(limit_s, 0.0) / 0.5)
        return share

    for time_s in np.quantile(drawn, [0.1, 0.5, 0.9, 0.99]):
        share = float(outputs.share_within(within, pace_of(0.02, 0.002), float(time_s))[0])
        assert share == pytest.approx(float(np.mean(drawn <= time_s)), abs=0.006)


def test_lengths_of_answers_have_the_quantiles_of_their_distribution() -> None:
    even = Outputs.of(UniformLengths(low=1, high=1000), LengthFacts(500.5, 0.577), 1e9)
    drawn = Outputs.of(MomentLengths(mean=300, cv=1.0), LengthFacts(300.0, 1.0), 1e9)
    deviation = math.sqrt(math.log(2.0))
    sample = np.sort(300.0 * np.exp(deviation * np.random.default_rng(1).normal(size=400_000) - deviation**2 / 2.0))
    for share in (0.1, 0.5, 0.9, 0.99, 0.999):
        assert even.quantile(share) == pytest.approx(1000.0 * share, abs=26.0)
        assert drawn.quantile(share) == pytest.approx(sample[int(share * len(sample))], rel=0.08)
    assert sum(even.shares) == pytest.approx(1.0)
    assert max(Outputs.of(MomentLengths(mean=300, cv=1.0), LengthFacts(300.0, 1.0), 700.0).tokens) == 700.0
    assert not Outputs.of(64, LengthFacts(64.0, 0.0), 1e9).vary


def test_first_tokens_within_a_time_are_the_inverse_of_their_quantiles() -> None:
    first = FirstTokens(np.array([0.1, 0.2]), np.array([0.3, 0.2]), np.array([0.05, 0.0]))
    for share in (0.05, 0.5, 0.99):
        assert first.share_within(first.quantile_s(share)[:1, None] * np.ones((2, 1)))[0, 0] == pytest.approx(share)
    assert first.share_within(np.array([[0.05], [0.19]])).ravel().tolist() == [0.0, 0.0]


@pytest.mark.parametrize("mode", ["colocated", "disaggregated"])
def test_limits_on_whole_requests_and_their_share_are_kept_as_predicted(mode: str) -> None:
    slo = {"latency": {"p50": "30s", "p99": "12s"}, "ttft": {"p90": "2s"}, "tpot": "30ms", "attainment": 0.97}
    edits = {"workloads.0.output_tokens": {"mean": 200, "cv": 1.0}, "workloads.0.slo": slo, "options.modes": [mode]}
    plan = solve(small({**edits, "workloads.0.load": {"rate": "8/s"}, "objective": {"minimize": "gpus"}}))
    said = {(p.metric, p.statistic): p.value for p in plan.predictions}
    assert said["latency_s", "p99"] <= 12.0 * (1 + 1e-9)
    assert said["attainment", "mean"] >= 0.97
    whole = simulate_plan(plan, ServeDecision.model_validate(plan.decision), Traffic(), Policies()).result.e2e_s
    assert said["latency_s", "p99"] == pytest.approx(float(np.quantile(whole, 0.99)), rel=0.15)
    assert said["latency_s", "mean"] < 0.5 * said["latency_s", "p99"]


@pytest.mark.parametrize("mode", ["colocated", "disaggregated"])
def test_requests_of_equal_answers_spread_with_contexts_and_with_how_many_are_there(mode: str) -> None:
    slo = {"latency": {"p99": "12s"}, "tpot": {"mean": "30ms", "p90": "1s", "p99": "1s"}}
    edits = {"workloads.0.input_tokens": {"mean": 1000, "cv": 1.0}, "workloads.0.output_tokens": 200,
             "workloads.0.slo": slo, "options": {"modes": [mode], "max_batch": [64]}}  # fmt: skip
    plan = solve(small({**edits, "workloads.0.load": {"rate": "8/s"}, "objective": {"minimize": "gpus"}}))
    said = {(p.metric, p.statistic): p.value for p in plan.predictions}
    tpot_s = simulate_plan(plan, ServeDecision.model_validate(plan.decision), Traffic(), Policies()).result.tpot_s
    assert said["tpot_s", "mean"] == pytest.approx(float(np.mean(tpot_s)), rel=0.02)
    for statistic, share, off in (("p90", 0.9, 0.04), ("p99", 0.99, 0.09)):
        assert said["tpot_s", statistic] == pytest.approx(float(np.quantile(tpot_s, share)), rel=off)
    assert said["latency_s", "p99"] > 1.04 * said["latency_s", "mean"]
