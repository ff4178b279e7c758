"""Gaps between tokens as runs count them and judges read them; the loop's counts are held to the slow simulator's."""

import math
from typing import Any

import numpy as np
import pytest

from planner.errors import PlannerError
from planner.problem.slo import Limit, SloSpec
from planner.simulate.fleet.instances import Fleet, Instance
from planner.simulate.fleet.step_grid import StepGrid
from planner.simulate.judge.intervals import estimate_gaps
from planner.simulate.judge.limits import Verdict, judge_runs
from planner.simulate.loop import fields as f
from planner.simulate.loop.gaps import gap_bin
from planner.simulate.requests.stream import Requests
from planner.simulate.run.attainment import kept, required
from planner.simulate.run.engine import simulate
from planner.simulate.run.gaps import Gaps, pooled, quantiles_s
from planner.simulate.run.result import SimulationResult

DECODE_S, PROMPT_S = 0.01, 0.05


def bin_of(gap_s: float) -> int:
    """What compiled code does."""
    compiled: Any = gap_bin
    return int(compiled.py_func(gap_s))


def counted(values: np.ndarray, parts: np.ndarray) -> Gaps:
    """Gaps counted one by one."""
    counts, seconds = np.zeros((1, f.GAP_PARTS, f.GAP_BINS), dtype=np.int64), np.zeros((1, f.GAP_PARTS))
    for value, part in zip(values.tolist(), parts.tolist(), strict=True):
        counts[0, part, bin_of(value)] += 1
        seconds[0, part] += value
    return Gaps.of_counts(counts, seconds)


def stream(seed: int, count: int = 3000, rate_per_s: float = 2.0) -> SimulationResult:
    """One engine whose steps take `DECODE_S`, or `PROMPT_S` with a prompt."""
    grid = StepGrid(
        decode_s=np.full((5, 2), DECODE_S),
        mixed_s=np.full((2, 2, 2, 1), PROMPT_S),
        batches=np.array([0.0, 4.0]),
        contexts=np.array([1.0, 1e4]),
        tokens=np.array([1.0, 1e3]),
        attended=np.array([1.0]),
    )
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1.0 / rate_per_s, count))
    requests = Requests.open_stream(arrivals, np.full(count, 100), rng.integers(2, 60, count))
    engine = Instance(grid, kv_tokens=10_000, most_sequences=4, token_budget=500)
    return simulate(Fleet((engine,)), requests)


@pytest.fixture(scope="module")
def runs() -> list[SimulationResult]:
    return [stream(seed) for seed in range(10)]


def test_gaps_add_up_to_the_times_between_first_and_last_tokens(runs: list[SimulationResult]) -> None:
    for run in runs:
        assert run.gaps.count == run.requests.output_tokens.sum() - len(run.requests)
        assert run.gaps.sum_s == pytest.approx((run.finished_s - run.first_token_s).sum())


def test_bins_hold_what_they_say_and_quantiles_come_back() -> None:
    rng = np.random.default_rng(0)
    values = rng.lognormal(-4.0, 1.0, 20_000)
    gaps = counted(values, rng.integers(0, f.GAP_PARTS, len(values)))
    assert gaps.count == len(values)
    assert gaps.statistic_s(None) == pytest.approx(values.mean())
    for quantile in (0.01, 0.5, 0.9, 0.99, 0.999):
        assert gaps.statistic_s(quantile) == pytest.approx(np.quantile(values, quantile), rel=0.005)
    for limit_s in np.quantile(values, (0.1, 0.5, 0.95)).tolist():
        assert gaps.share_within(limit_s) == pytest.approx(np.mean(values <= limit_s), abs=2e-3)
    assert [bin_of(bad) for bad in (0.0, -1.0, 1e-9, 1e9)] == [0, 0, 0, f.GAP_BINS - 1]


def test_percentiles_of_gaps_are_of_gaps_and_not_of_requests(runs: list[SimulationResult]) -> None:
    judgement = judge_runs(runs, [SloSpec(itl=Limit(p50_s=0.02, p99_s=0.02), tpot=Limit(p99_s=0.06))])
    median, late, average = judgement.limits[1], judgement.limits[2], judgement.limits[0]
    assert [median.time, late.time, average.time] == ["itl", "itl", "tpot"]
    assert (median.verdict, late.verdict) == (Verdict.KEPT, Verdict.BROKEN)
    assert median.estimate.value == pytest.approx(DECODE_S, rel=0.005)
    assert late.estimate.value == pytest.approx(PROMPT_S, rel=0.005)
    assert DECODE_S < average.estimate.value < PROMPT_S


def test_intervals_of_a_mean_gap_hold_the_mean_of_many_streams(runs: list[SimulationResult]) -> None:
    mean_s = sum(run.gaps.sum_s for run in runs) / sum(run.gaps.count for run in runs)
    held = 0
    for first in range(0, 10, 2):
        judged = estimate_gaps([run.gaps for run in runs[first : first + 2]], "mean")
        held += judged.low <= mean_s <= judged.high
    assert held >= 4
    assert math.isnan(estimate_gaps([runs[0].gaps.of_workload(7)], "p99").value)


def test_intervals_of_a_quantile_hold_the_exact_one() -> None:
    held = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        parts = np.repeat(np.arange(f.GAP_PARTS), 60)
        streams = [counted(rng.exponential(0.02, len(parts)), parts) for _ in range(5)]
        judged = estimate_gaps(streams, "p90")
        held += judged.low <= -0.02 * math.log(0.1) <= judged.high
    assert held >= 34  # of 38 on average


def test_parts_of_a_run_are_by_answers(runs: list[SimulationResult]) -> None:
    gaps = runs[0].gaps
    halves = gaps.within(0.0, 0.5), gaps.within(0.5, 1.0)
    assert sum(half.count for half in halves) == gaps.count
    assert halves[0].count == pytest.approx(halves[1].count, rel=0.05)
    assert sum(batch.count for batch in gaps.batches(8)) == gaps.count
    series = gaps.series_s(3000)
    assert len(series) >= 3000
    assert series.mean() == pytest.approx(gaps.sum_s / gaps.count, rel=0.02)
    assert quantiles_s(pooled([gaps.of_workload(3)]), np.array([0.5])).tolist() == pytest.approx(
        [math.nan], nan_ok=True
    )


def test_goodput_counts_gaps_among_the_limits_and_needs_another(runs: list[SimulationResult]) -> None:
    within = Limit(p99_s=10.0)
    assert kept(runs[0], SloSpec(ttft=within, itl=Limit(p50_s=0.02)))
    assert not kept(runs[0], SloSpec(ttft=within, itl=Limit(p99_s=0.02)))
    assert len(required(SloSpec(ttft=within, itl=Limit(p99_s=0.02)))) == 1
    with pytest.raises(PlannerError, match="gaps between tokens alone"):
        required(SloSpec(itl=within))
