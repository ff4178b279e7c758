"""Percentiles of estimates: against the simulator, formulas, counts from the definition, and what is refused."""

import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba", reason="the replay is compiled by numba")

from closed_loops import simulated_run

from planner.errors import PlannerError
from planner.estimate import estimate_jsonl, estimate_measured
from planner.estimate.closed_loop import ClosedLoops, LoopTimes, simulate_loops
from planner.estimate.compiled.quantiles import BINS, gap_quantiles, weighted_quantiles

LEVELS = (0.5, 0.9, 0.95, 0.99)
BIN = 0.01  # gaps are counted in bins of .5 %, the simulator's of .4 %
PLAIN = {
    "clients": 1.0, "requests_per_client": 10.0, "isl": 1000.0, "osl": 101.0, "spread": 0.0, "osl_spread": 0.0,
    "disaggregated": 0.0, "decode_instances": 1.0, "decode_ranks": 1.0, "prefill_ranks": 1.0, "most_decoding": 64.0,
    "base_s": 0.01, "slope_s": 1e-4, "start_s": 2e-3, "token_s": 1e-5, "moved_s": 0.0, "step_tokens": 8192.0,
    "frontend_s": 0.0, "arrival_s": 0.0, "poll_steps": 1.0, "output_steps": 0.0, "hold_steps": 0.0,
    "prefill_first": 0.0, "staggered": 0.0, "least_s": 0.0, "rate_per_s": 0.0, "cache_tokens": np.inf,
    "graph_batch": np.inf, "eager_s": 0.0, "jitter": 0.0, "frontend_token_s": 0.0, "tokenises_together": 0.0,
    "prefill_members": 1.0, "whole_prompts": 0.0,
}  # fmt: skip
REQUEST: dict[str, Any] = {
    "models": {"llama": {"name": "meta-llama/Llama-3.1-8B-Instruct", "weights": "fp8"}},
    "cluster": {"pools": [{"gpu": "h100", "nodes": 1}]},
    "workloads": [{"input_tokens": 2000, "output_tokens": 300, "load": {"concurrency": 16}}],
    "decision": {"parallelism": {"tp": 2}},
}


def both(**changes: float) -> tuple[LoopTimes, Any]:
    """A loop replayed and simulated."""
    assert set(changes) <= set(PLAIN) == {field.name for field in fields(ClosedLoops)}
    loop = {**PLAIN, **changes}
    times = simulate_loops(ClosedLoops(**{name: np.array([float(value)]) for name, value in loop.items()}), LEVELS)
    return times, simulated_run(loop)


def prediction(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON
    (line,) = estimate_jsonl([json.dumps({**REQUEST, **changes})], percentiles=True)
    answer: dict[str, Any] = json.loads(line)
    return answer


@settings(max_examples=12, deadline=None)
@given(
    clients=st.integers(2, 24),
    isl=st.integers(1, 3000),
    osl=st.integers(2, 60),
    chunk=st.sampled_from([256, 2048, 8192]),
    most=st.sampled_from([2, 9, 64]),
    spread=st.sampled_from([0.0, 0.5]),
    graph_batch=st.sampled_from([1.0, 8.0, math.inf]),
    first=st.sampled_from([0.0, 1.0]),
)
def test_percentiles_are_those_of_the_simulator(
    clients: int, isl: int, osl: int, chunk: int, most: int, spread: float, graph_batch: float, first: float
) -> None:
    """TTFT, gaps, TPOT and latency of every percentile; prompts of whole tokens alone have equal times in both."""
    times, run = both(
        clients=clients, isl=isl, osl=osl, step_tokens=chunk, most_decoding=most, osl_spread=spread,
        graph_batch=graph_batch, eager_s=0.015, prefill_first=first,
    )  # fmt: skip
    own = times.quantiles[:, :, 0]
    for metric, values in ((0, run.ttft_s), (3, run.e2e_s), (2, np.nan_to_num(run.tpot_s))):
        kept = np.sort(values)
        ranks = [math.ceil(level * len(kept) * (1 - 1e-12)) - 1 for level in LEVELS]
        assert own[metric] == pytest.approx(kept[ranks], rel=1e-6)
    if run.gaps.count > 0:
        beside = [run.gaps.statistic_s(level * (1 + side)) for side in (-2e-3, 2e-3) for level in LEVELS]
        low, high = np.minimum(beside[:4], beside[4:]), np.maximum(beside[:4], beside[4:])
        assert np.all(own[1] >= low * (1 - BIN))
        assert np.all(own[1] <= high * (1 + BIN))


@pytest.mark.parametrize("blocks", [505, 500, 497])
@pytest.mark.parametrize("first", [0.0, 1.0])
def test_a_full_cache_preempts_as_in_the_simulator(blocks: int, first: float) -> None:
    """Sequences take whole blocks: equal ones of 405 tokens take their next ones in the same step."""
    crowded = {"clients": 32, "isl": 405, "osl": 401, "step_tokens": 2048, "prefill_first": first}
    times, run = both(**crowded, cache_tokens=16 * blocks)
    free, _ = both(**crowded)
    assert run.preemptions.sum() > 20
    assert times.tpot_s[0] == pytest.approx(float(np.nanmean(run.tpot_s)), rel=2e-3)
    assert times.ttft_s[0] == pytest.approx(float(np.mean(run.ttft_s)), rel=2e-3)
    assert times.quantiles[1, 3, 0] == pytest.approx(run.gaps.statistic_s(0.99), rel=BIN)
    assert times.quantiles[2, 3, 0] == pytest.approx(float(np.quantile(run.tpot_s, 0.99)), rel=0.03)
    assert times.ttft_s[0] > 2.0 * free.ttft_s[0]


def test_delayed_requests_overtake_each_other_as_in_the_simulator() -> None:
    """Prompts of 64 clients take steps of their own: those that come together lengthen the same gaps."""
    loop = {**PLAIN, "clients": 64.0, "isl": 1024.0, "osl": 128.0, "prefill_first": 1.0, "staggered": 1.0,
            "arrival_s": 0.04}  # fmt: skip
    times, _ = both(**loop)
    run = simulated_run(loop, seed=1, delayed=True)
    assert times.quantiles[1, 3, 0] == pytest.approx(run.gaps.statistic_s(0.99), rel=0.15)
    assert times.ttft_s[0] == pytest.approx(float(np.mean(run.ttft_s)) + loop["arrival_s"], rel=0.05)


def test_luck_of_the_host_spreads_gaps_as_a_lognormal_factor() -> None:
    times, _ = both(jitter=0.2, osl=2001.0)
    deviation = math.sqrt(math.log(1.04))
    step = 0.01 + 1e-4
    expected = [step * math.exp(z * deviation - deviation**2 / 2) for z in (0.0, 1.28155, 1.64485, 2.32635)]
    assert times.quantiles[1, :, 0] == pytest.approx(expected, rel=BIN)
    assert times.tpot_s[0] == pytest.approx(step, rel=0.01)


def test_an_open_load_queues_as_in_the_simulator() -> None:
    loop = {"clients": 0.0, "rate_per_s": 6.0, "osl": 101.0, "token_s": 5e-5, "requests_per_client": 1.0}
    times, run = both(**loop, most_decoding=32.0)
    middle = slice(len(run.ttft_s) // 5, None)
    assert times.quantiles[0, :2, 0] == pytest.approx(np.quantile(run.ttft_s[middle], LEVELS[:2]), rel=0.1)
    assert times.quantiles[2, :3, 0] == pytest.approx(np.quantile(run.tpot_s[middle], LEVELS[:3]), rel=0.1)


@pytest.mark.parametrize("mode", ["colocated", "disaggregated"])
def test_no_token_of_a_light_open_load_takes_less_than_reading_the_weights(mode: str) -> None:
    part = {"replicas": 2, "parallelism": {"tp": 1}}
    decision = part if mode == "colocated" else {"prefill": part, "decode": part}
    load = {"input_tokens": 500, "output_tokens": 200, "load": {"rate": "0.5/s"}}
    told = prediction(decision={"mode": mode, **decision}, workloads=[load])["prediction"]
    weights_bytes, bandwidth_bytes_per_s = 7.5e9, 3.35e12  # Llama-3.1-8B in fp8 but for its embedding, H100 SXM
    assert told["tpot_s"] > weights_bytes / bandwidth_bytes_per_s


@pytest.mark.parametrize("mode", ["colocated", "disaggregated"])
@pytest.mark.parametrize("rate", [2, 20])
def test_the_mean_of_an_open_load_is_that_of_the_requests_whose_percentiles_are_told(mode: str, rate: int) -> None:
    part = {"replicas": 4, "parallelism": {"tp": 1}}
    decision = part if mode == "colocated" else {"prefill": part, "decode": part}
    load = {"input_tokens": {"mean": 1000, "cv": 0.5}, "output_tokens": 100, "load": {"rate": f"{rate}/s"}}
    told = prediction(decision={"mode": mode, **decision}, workloads=[load])["prediction"]
    for metric in ("ttft_s", "tpot_s"):
        assert told["percentiles"][metric]["p50"] * 0.95 < told[metric] < told["percentiles"][metric]["p90"] * 1.01


@settings(max_examples=40, deadline=None)
@given(
    values=st.lists(st.floats(0.1, 10.0), min_size=1, max_size=12), first=st.integers(1, 12), later=st.integers(1, 5)
)
def test_quantiles_of_requests_count_those_that_stand_for_others(values: list[float], first: int, later: int) -> None:
    out = np.zeros(len(LEVELS))
    weighted_quantiles(np.array(values), first, float(later), np.array(LEVELS), out)
    whole = sorted(value for place, value in enumerate(values) for _ in range(1 if place < first else later))
    assert out.tolist() == [whole[math.ceil(level * len(whole) * (1 - 1e-12)) - 1] for level in LEVELS]


def test_no_gap_has_no_quantile() -> None:
    out = np.zeros(len(LEVELS))
    gap_quantiles(np.zeros(BINS), 0.0, np.array(LEVELS), out)
    assert np.isnan(out).all()
    answer = prediction(workloads=[{"input_tokens": 200, "output_tokens": 1, "load": {"concurrency": 2}}])
    assert answer["prediction"]["percentiles"]["itl_s"]["p50"] is None


def test_percentiles_ascend_and_luck_lengthens_their_end() -> None:
    plain, shaken = prediction(), prediction(decision={"parallelism": {"tp": 2}, "settings": {"jitter": 0.3}})
    for answer in (plain, shaken):
        tables = answer["prediction"]["percentiles"]
        assert list(tables) == ["ttft_s", "itl_s", "tpot_s", "latency_s"]
        assert all(list(table.values()) == sorted(table.values()) for table in tables.values())
    ratio = [a["prediction"]["percentiles"]["itl_s"]["p95"] for a in (shaken, plain)]
    assert ratio[0] > 1.3 * ratio[1]
    (line,) = estimate_jsonl([json.dumps(REQUEST)])
    assert "percentiles" not in json.loads(line)["prediction"]


def test_preemption_is_refused_where_there_is_none(tmp_path: Path) -> None:
    part = {"parallelism": {"tp": 1}}
    apart = {"mode": "disaggregated", "prefill": part, "decode": part, "settings": {"preempts": True}}
    assert "preemption" in prediction(decision=apart)["error"]
    table = tmp_path / "runs.csv"
    table.write_text(
        "id,model,system,backend,mode,isl,osl,concurrency,gpus,tp,pp,dp,moe_tp,moe_ep,preempts,reserved_output,jitter\n"
        "a,meta-llama/Llama-3.1-8B-Instruct,h100_sxm,vllm,agg,500,50,8,1,1,1,1,1,1,1,1,\n"
        "b,meta-llama/Llama-3.1-8B-Instruct,h100_sxm,vllm,agg,500,50,8,1,1,1,1,1,1,1,,2\n"
        "c,meta-llama/Llama-3.1-8B-Instruct,h100_sxm,vllm,agg,500,50,8,1,1,1,1,1,1,1,,.1\n"
    )
    answers = [json.loads(line) for line in estimate_measured(str(table), percentiles=True)]
    assert "room for what they will write" in answers[0]["error"]
    assert "`jitter` of the row cannot be 2" in answers[1]["error"]
    assert answers[2]["prediction"]["percentiles"]["itl_s"]["p99"] > 0.0


def test_training_runs_have_no_percentiles(tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    table.write_text("id,seq,gbs,num_gpus\n")
    with pytest.raises(PlannerError, match="percentiles are of requests"):
        list(estimate_measured(str(table), percentiles=True))
