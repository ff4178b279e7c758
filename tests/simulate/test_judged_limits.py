"""Limits judged on independent streams: warm-up, intervals, run lengths and verdicts."""

import dataclasses
from collections.abc import Sequence
from typing import TypeAlias

import judge_coverage
import numpy as np
import pytest

from planner.errors import PlannerError
from planner.plan.findings import CLOSE, Finding, as_row, counts, passed, undecided_fails
from planner.problem.slo import Limit, SloSpec
from planner.problem.statistics import quantile_of
from planner.simulate.fleet.instances import Fleet, Instance
from planner.simulate.fleet.step_grid import StepGrid
from planner.simulate.judge.intervals import Estimate, estimate, fewest
from planner.simulate.judge.judging import Streams, judge
from planner.simulate.judge.lengths import memory
from planner.simulate.judge.limits import JudgedLimit, Judgement, Verdict
from planner.simulate.judge.warm_up import mser5, warm_up
from planner.simulate.requests.stream import Requests
from planner.simulate.run.engine import simulate
from planner.simulate.run.result import SimulationResult

Runs: TypeAlias = Sequence[SimulationResult]


def test_a_warm_up_is_cut_where_it_ends_and_noise_alone_has_hardly_one() -> None:
    rng = np.random.default_rng(0)
    for ramp in (200, 1000):
        times = np.minimum(np.arange(5000) / ramp, 1.0)
        cut = warm_up([times + rng.normal(0.0, 0.3, 5000) for _ in range(5)])
        assert cut is not None
        assert 0.7 * ramp <= cut <= 1.5 * ramp
    flat = mser5(rng.normal(1.0, 0.1, 5000))
    assert flat is not None
    assert flat < 500


def test_a_stream_that_grows_to_its_end_has_no_stationary_part() -> None:
    assert mser5(np.arange(2000.0)) is None
    assert mser5(np.arange(20.0)) is None


@pytest.mark.parametrize("name", ["mean", "p90", "p99"])
def test_intervals_of_independent_values_hold_the_exact_statistic(name: str) -> None:
    quantile = quantile_of(name)
    exact = 1.0 if quantile is None else -np.log(1.0 - quantile)
    held = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        judged = estimate([rng.exponential(1.0, 4000) for _ in range(5)], name)
        held += judged.low <= exact <= judged.high
    assert held >= 52  # of 57 on average; fewer in one of 100 runs


def test_too_few_values_have_no_interval() -> None:
    values = np.ones(fewest("p99") - 1)
    assert estimate([values], "p99").interval is None
    assert estimate([np.append(values, 1.0)], "p99").interval == (1.0, 1.0)


@pytest.mark.parametrize(
    ("service", "busy", "name"), [("D", 0.8, "p50"), ("D", 0.9, "mean"), ("M", 0.5, "p99"), ("E4", 0.6, "p90")]
)
def test_intervals_of_a_single_server_hold_its_exact_times(service: str, busy: float, name: str) -> None:
    queue = judge_coverage.Queue("M", service, busy)
    exact = judge_coverage.exact_s(queue, name)
    judged = [judge_coverage.judgement_of(queue, name, seed) for seed in range(12)]
    assert all(each.long_enough for each in judged)
    assert sum(judge_coverage.holds(each, exact) for each in judged) >= 10  # fewer in one of 50 at 95 %


def test_streams_of_one_server_by_recursion_are_those_of_the_simulator() -> None:
    grid = StepGrid.affine(token_s=1e-3, most_sequences=1)
    server = Fleet((Instance(grid, 2**30, most_sequences=1, token_budget=2**20),))
    rng = np.random.default_rng(0)
    arrival_s, tokens = np.cumsum(rng.exponential(1.2, 500)), rng.integers(1, 2000, 500)
    service_s = np.asarray(tokens * 1e-3, dtype=np.float64)
    simulated = simulate(server, Requests.open_stream(arrival_s, tokens, np.ones(500)))
    assert judge_coverage.served(arrival_s, service_s).ttft_s == pytest.approx(simulated.ttft_s, rel=1e-9)


def test_a_stream_remembers_what_its_correlation_says() -> None:
    rng, carried = np.random.default_rng(1), 0.9
    streams = []
    for _ in range(10):
        noise = rng.normal(size=20_000)
        values = [0.0]
        for each in noise:
            values.append(carried * values[-1] + each)
        streams.append(np.array(values[1:]))
    assert memory(streams) == pytest.approx((1 + carried) / (1 - carried), rel=0.35)
    assert memory([rng.normal(size=5000) for _ in range(10)]) < 2.0


def test_streams_that_may_not_be_long_enough_are_too_close_to_call() -> None:
    runs = judge_coverage.runs_of(judge_coverage.Queue("M", "M", 0.95), 0)
    judgement = judge(runs, [SloSpec(ttft=Limit(p99_s=100.0))], most_requests=20_000)
    assert not judgement.long_enough
    assert judgement.verdict is Verdict.CLOSE


def test_a_limit_far_away_neither_lengthens_streams_nor_leaves_them_too_short() -> None:
    runs = judge_coverage.runs_of(judge_coverage.Queue("M", "M", 0.8), 0)
    far, near = (judge(runs, [SloSpec(ttft=Limit(mean_s=8.0, p99_s=p99_s))]) for p99_s in (500.0, 30.0))
    counts = [sum(len(run.requests) for run in each.runs) for each in (far, near)]
    assert 2 * counts[0] < counts[1]
    assert far.verdict is Verdict.KEPT
    assert not far.long_enough


@pytest.mark.parametrize(("p99_s", "verdict"), [(1.0, Verdict.CLOSE), (10.0, Verdict.KEPT)])
def test_streams_too_short_for_one_limit_tell_another(p99_s: float, verdict: Verdict) -> None:
    interval = Estimate(0.5, (0.4, 0.65), 100)
    known, unknown = JudgedLimit(0, "ttft", "mean", 0.7, interval), JudgedLimit(0, "tpot", "p99", p99_s, interval)
    limits = known, dataclasses.replace(unknown, long_enough=False)
    judged = Judgement((), limits, (0,), 1.0, saturated=False, parts=())
    assert (judged.verdict, judged.long_enough) == (verdict, False)


def test_what_is_estimated_comes_from_streams_that_no_length_was_chosen_on() -> None:
    runs: Streams = judge_coverage.runs_of(judge_coverage.Queue("M", "D", 0.8), 0)
    asked: list[bool] = []

    def noted(requests: int, *, pilot: bool) -> Sequence[SimulationResult]:
        asked.append(pilot)
        return runs(requests, pilot=pilot)

    judgement = judge(noted, [SloSpec(ttft=Limit(mean_s=3.2))])
    assert asked[-1] is False
    assert asked.count(False) == 1
    assert True in asked
    fresh = runs(sum(len(run.requests) for run in judgement.runs), pilot=False)
    assert [run.ttft_s[-1] for run in judgement.runs] == [run.ttft_s[-1] for run in fresh]


def test_streams_near_a_load_that_runs_tell_of_need_no_pilots_and_hold_the_exact_times() -> None:
    queue, name = judge_coverage.Queue("M", "M", 0.7), "p90"
    exact = judge_coverage.exact_s(queue, name)
    busier = dataclasses.replace(queue, busy=0.72)
    held, piloted = 0, 0
    for seed in range(12):
        runs, asked = judge_coverage.runs_of(queue, seed), list[bool]()

        def noted(requests: int, *, pilot: bool, runs: Streams = runs, asked: list[bool] = asked) -> Runs:
            asked.append(pilot)
            return runs(requests, pilot=pilot)

        near = judge_coverage.judgement_of(busier, name, seed + 1000)
        judged = judge(noted, [SloSpec(ttft=Limit(p90_s=1.1 * exact))], near=near)
        held += judge_coverage.holds(judged, exact)
        piloted += any(asked)
    assert held >= 10  # fewer in one of 50 at 95 %
    assert piloted == 0


def test_runs_near_a_load_whose_waits_grow_tell_nothing_of_streams() -> None:
    queue, slos = judge_coverage.Queue("M", "M", 0.7), [SloSpec(ttft=Limit(mean_s=5.0))]
    growing = judge(judge_coverage.runs_of(dataclasses.replace(queue, busy=1.2), 1), slos)
    assert growing.saturated
    judged = judge(judge_coverage.runs_of(queue, 0), slos, near=growing)
    alone = judge(judge_coverage.runs_of(queue, 0), slos)
    assert [limit.estimate for limit in judged.limits] == [limit.estimate for limit in alone.limits]


def test_runs_grow_towards_a_limit_that_is_close() -> None:
    queue = judge_coverage.Queue("M", "D", 0.5)
    exact, counts_of = judge_coverage.exact_s(queue, "mean"), []
    for factor in (2.0, 1.02):
        limits = [SloSpec(ttft=Limit(mean_s=factor * exact))]
        judgement = judge(judge_coverage.runs_of(queue, 3), limits)
        assert judgement.verdict is Verdict.KEPT
        assert judgement.limits[0].margin == pytest.approx(1.0 - 1.0 / factor, abs=0.03)
        counts_of.append(judgement.limits[0].estimate.count)
    assert counts_of[1] > 1.5 * counts_of[0]
    broken = judge(judge_coverage.runs_of(queue, 3), [SloSpec(ttft=Limit(mean_s=0.8 * exact))])
    assert broken.verdict is Verdict.BROKEN


def test_more_than_a_server_can_take_is_broken_at_once() -> None:
    judgement = judge(judge_coverage.runs_of(judge_coverage.Queue("M", "D", 1.5), 0), [SloSpec(ttft=Limit(p99_s=1e6))])
    assert judgement.saturated
    assert judgement.verdict is Verdict.BROKEN


def test_a_limit_within_its_interval_is_too_close_to_call() -> None:
    def verdict(time: str, limit: float) -> Verdict:
        return JudgedLimit(0, time, "mean", limit, Estimate(0.5, (0.4, 0.6), 100)).verdict

    assert [verdict("ttft", limit) for limit in (0.39, 0.5, 0.61)] == [Verdict.BROKEN, Verdict.CLOSE, Verdict.KEPT]
    assert [verdict("attainment", limit) for limit in (0.39, 0.5, 0.61)] == [
        Verdict.KEPT, Verdict.CLOSE, Verdict.BROKEN,
    ]  # fmt: skip


def test_what_is_too_close_to_call_fails_only_where_asked() -> None:
    finding = Finding("simulate.ttft", True, "", close=True)
    assert finding.verdict == CLOSE
    assert passed([finding])
    assert counts([finding])[CLOSE] == 1
    assert as_row(finding)["ok"] is False
    assert not passed([undecided_fails(finding)])
    assert CLOSE not in counts([Finding("a", True, "")])


@pytest.mark.parametrize("name", ["p0", "p100", "p101.5", "median", "p-5", "p"])
def test_names_that_are_no_statistic_are_refused(name: str) -> None:
    with pytest.raises(PlannerError):
        quantile_of(name)
    assert quantile_of("p99.9") == 0.999


def test_of_fewer_values_than_can_be_told_of_no_limit_is_kept() -> None:
    few, many = (JudgedLimit(0, "ttft", "p95", 1.0, Estimate(0.1, None, count)) for count in (99, 100))
    assert few.too_few
    assert few.verdict is Verdict.CLOSE
    assert many.verdict is Verdict.KEPT
    assert JudgedLimit(0, "ttft", "p95", 1.0, Estimate(2.0, None, 3)).verdict is Verdict.BROKEN
