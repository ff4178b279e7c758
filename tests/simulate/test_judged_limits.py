"""Limits judged on independent streams: warm-up, intervals, run lengths and verdicts."""

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from planner.errors import PlannerError
from planner.plan.findings import CLOSE, Finding, as_row, counts, passed, undecided_fails
from planner.problem.schema import Limit, SloSpec
from planner.problem.statistics import quantile_of
from planner.simulate.judge.intervals import Estimate, estimate, fewest
from planner.simulate.judge.limits import JudgedLimit, Verdict, judge
from planner.simulate.judge.warm_up import mser5, warm_up


@pytest.fixture(scope="module")
def coverage() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "judge_coverage.py"
    spec = importlib.util.spec_from_file_location("judge_coverage", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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


@pytest.mark.parametrize(("queue", "busy", "name"), [("M/D/1", 0.8, "p50"), ("M/M/1", 0.5, "p95")])
def test_intervals_of_a_single_server_hold_its_exact_times(
    coverage: ModuleType, queue: str, busy: float, name: str
) -> None:
    exact = coverage.exact_s(queue, busy, name)
    held = sum(coverage.holds(coverage.judgement_of(queue, busy, name, seed), exact) for seed in range(8))
    assert held >= 6


def test_runs_grow_towards_a_limit_that_is_close(coverage: ModuleType) -> None:
    exact, counts_of = coverage.exact_s("M/D/1", 0.5, "p99"), []
    for factor in (2.0, 1.06):
        limits = [SloSpec(ttft=Limit(p99_s=factor * exact))]
        judgement = judge(coverage.runs_of("M/D/1", 0.5, 3), limits)
        assert judgement.verdict is Verdict.KEPT
        assert judgement.limits[0].margin == pytest.approx(1.0 - 1.0 / factor, abs=0.03)
        counts_of.append(judgement.limits[0].estimate.count)
    assert counts_of[1] > 1.5 * counts_of[0]
    broken = judge(coverage.runs_of("M/D/1", 0.5, 3), [SloSpec(ttft=Limit(p99_s=0.8 * exact))])
    assert broken.verdict is Verdict.BROKEN


def test_more_than_a_server_can_take_is_broken_at_once(coverage: ModuleType) -> None:
    judgement = judge(coverage.runs_of("M/D/1", 1.5, 0), [SloSpec(ttft=Limit(p99_s=1e6))])
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
