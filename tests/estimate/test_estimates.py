"""Estimates of given decisions: every measured deployment, requests good and bad, the closed loop, and its speed."""

import csv
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.estimate import estimate_jsonl, estimate_measured
from planner.estimate.mean_field import Dynamics, settle

MEASURED = Path(__file__).parents[3] / "shared" / "data" / "serving" / "measured.csv"
COLUMNS = ("ttft_s", "tpot_s", "ttft_s_interval", "tpot_s_interval", "output_tokens_per_s_per_gpu", "memory_bytes")

REQUEST: dict[str, Any] = {
    "id": "a",
    "models": {"llama": {"name": "meta-llama/Llama-3.1-8B-Instruct", "weights": "fp8"}},
    "cluster": {"pools": [{"gpu": "h100", "nodes": 1}]},
    "workloads": [{"input_tokens": 2000, "output_tokens": 300, "load": {"concurrency": 16}}],
    "decision": {"mode": "colocated", "replicas": 2, "parallelism": {"tp": 2}},
}


def request(**changes: Any) -> str:  # noqa: ANN401  # any JSON
    return json.dumps({"schema": "planner.problem/1", **REQUEST, **changes})


def answers(*lines: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in estimate_jsonl(lines)]


def loaded(load: dict[str, Any], **changes: Any) -> dict[str, Any]:  # noqa: ANN401  # any JSON
    (answer,) = answers(request(workloads=[{**REQUEST["workloads"][0], "load": load}], **changes))
    return answer


WIDE: dict[str, Any] = {
    "models": {"deepseek": {"name": "deepseek-ai/DeepSeek-V3", "weights": "fp8"}},
    "cluster": {"pools": [{"gpu": "h800", "nodes": 8}]},
    "engine": {"name": "sglang"},
    "workloads": [{"input_tokens": 4000, "output_tokens": 100, "load": {"concurrency": 512}}],
}
EXPERTS = {"parallelism": {"dp": 32, "ep": 32}, "chunk_tokens": 8192}


def in_batches(prefill: int, decode: int, **changes: Any) -> dict[str, Any]:  # noqa: ANN401  # any JSON
    """Prefill and decode of DeepSeek-V3 whose steps are cut in so many batches."""
    sides = {"prefill": EXPERTS | {"micro_batches": prefill}, "decode": EXPERTS | {"micro_batches": decode}}
    (answer,) = answers(request(**WIDE | {"decision": {"mode": "disaggregated", **sides}} | changes))
    return answer


def test_two_batches_hasten_long_prompts_and_not_small_decode_batches() -> None:
    whole, halves = in_batches(1, 1)["prediction"], in_batches(2, 1)["prediction"]
    assert halves["ttft_s"] < whole["ttft_s"]
    assert in_batches(1, 2)["prediction"]["tpot_s"] > whole["tpot_s"]


def test_two_batches_where_an_engine_cuts_none_are_refused() -> None:
    assert "does not cut" in in_batches(2, 1, engine={"name": "trtllm"})["error"]
    (dense,) = answers(request(decision=REQUEST["decision"] | {"micro_batches": 2}))
    assert "whole experts" in dense["error"]
    (odd,) = answers(request(decision=REQUEST["decision"] | {"micro_batches": 3}))
    assert "micro_batches" in odd["error"]


@pytest.mark.skipif(not MEASURED.exists(), reason="the table of measured deployments is not here")
def test_every_measured_deployment_is_predicted_and_none_is_out_of_memory() -> None:
    with MEASURED.open(newline="") as file:
        ids = [row["id"] for row in csv.DictReader(file)]
    results = [json.loads(line) for line in estimate_measured(str(MEASURED))]
    assert [answer["id"] for answer in results] == ids
    refused = [answer["error"] for answer in results if "error" in answer]
    assert sum("memory" in reason for reason in refused) <= 0.01 * len(ids)
    assert not refused
    for answer in results:
        prediction = answer["prediction"]
        assert tuple(prediction) == COLUMNS
        assert all(prediction[name] > 0 for name in ("ttft_s", "tpot_s", "output_tokens_per_s_per_gpu", "memory_bytes"))


def test_a_request_is_answered_with_its_own_id() -> None:
    (answer,) = answers(request())
    assert answer["id"] == "a"
    assert tuple(answer["prediction"]) == COLUMNS


def test_what_is_wrong_with_a_line_stands_in_its_own_answer_and_the_order_is_kept() -> None:
    lines = [
        request(id="good"),
        "{not json",
        "[1, 2]",
        '{"id": "bare"}',
        request(id="typo", workload=[]),
        request(id="unknown", models={"m": {"name": "no/such-model"}}),
        request(id="mode", decision={"mode": "disaggregated"}),
        request(id="crowd", decision={"replicas": 9, "parallelism": {"tp": 8}}),
        request(id="idle", workloads=[{"input_tokens": 10, "output_tokens": 10}]),
        request(id="heavy", models={"m": {"name": "meta-llama/Llama-3.1-405B"}}, decision={}),
        request(id="option", options={"speculation": {"drafts": 3}}),
        request(id="last"),
    ]
    results = answers(*lines)
    names = ["good", "line 2", "line 3", "bare", "typo", "unknown", "mode", "crowd", "idle", "heavy", "option", "last"]
    assert [answer["id"] for answer in results] == names
    assert ["error" in answer for answer in results] == [False, *([True] * 10), False]
    by_id = {answer["id"]: answer.get("error", "") for answer in results}
    for name, word in (
        ("line 2", "JSON"),
        ("line 3", "object"),
        ("bare", "`decision` is missing"),
        ("typo", "workload"),
        ("unknown", "no/such-model"),
        ("mode", "needs `prefill` and `decode`"),
        ("crowd", "72 GPUs"),
        ("idle", "load"),
        ("heavy", "out of memory"),
        ("option", "request: options.speculation.drafts: unknown key `drafts`; did you mean `draft_step`"),
    ):
        assert word in by_id[name], by_id[name]


def test_equal_decisions_are_estimated_alike_alone_and_among_others() -> None:
    alone = answers(request())[0]
    among = answers(request(id="x", decision={"parallelism": {"tp": 8}}), request(), request(id="y"))
    assert among[1] == alone
    assert among[2]["prediction"] == alone["prediction"]


def test_an_open_load_beyond_what_can_be_served_is_said_to_saturate() -> None:
    calm, flooded = loaded({"rate": "2/s"}), loaded({"rate": "2000/s"})
    assert "prediction" in calm
    assert flooded["error"].startswith("saturated: at most ")
    most = float(flooded["error"].split()[3])
    assert "prediction" in loaded({"rate": f"{0.9 * most}/s"})
    assert "error" in loaded({"rate": f"{1.1 * most}/s"})


@pytest.mark.parametrize("mode", ["colocated", "disaggregated"])
def test_more_clients_wait_longer_and_never_yield_less(mode: str) -> None:
    split = {"mode": mode, "prefill": {"parallelism": {"tp": 2}}, "decode": {"parallelism": {"tp": 2}}}
    decision = REQUEST["decision"] if mode == "colocated" else split
    predictions = [loaded({"concurrency": n}, decision=decision)["prediction"] for n in (1, 4, 16, 64, 256, 1024)]
    for less, more in itertools.pairwise(predictions):
        assert more["output_tokens_per_s_per_gpu"] >= less["output_tokens_per_s_per_gpu"] * 0.999
        assert more["ttft_s"] >= less["ttft_s"] * 0.999
        assert more["tpot_s"] >= less["tpot_s"] * 0.93  # decoding is linear between two batches priced for each load


def test_prompts_that_a_cache_holds_take_less_time(tmp_path: Path) -> None:
    names = "id,aic_model,weights,system,backend,mode,isl,osl,concurrency,gpus,tp,pp,dp,moe_tp,moe_ep,prefix_hits"
    row = "meta-llama/Llama-3.1-8B-Instruct,fp8,h100_sxm,vllm,agg,8000,200,32,1,1,1,1,1,1"
    table = tmp_path / "table.csv"
    table.write_text("\n".join([names, *(f"{hits},{row},{hits}" for hits in (0.0, 0.5, 0.9))]) + "\n")
    predictions = [json.loads(line)["prediction"] for line in estimate_measured(str(table))]
    for less, more in itertools.pairwise(predictions):
        assert more["ttft_s"] < less["ttft_s"]
        assert more["tpot_s"] < less["tpot_s"]


def test_a_table_that_is_none_is_refused(tmp_path: Path) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("id,isl\n1,2\n")
    with pytest.raises(PlannerError, match="has no column"):
        list(estimate_measured(str(bad)))
    with pytest.raises(PlannerError, match="cannot be read"):
        list(estimate_measured(str(tmp_path / "absent.csv")))


def test_rows_that_make_no_sense_are_refused_one_by_one(tmp_path: Path) -> None:
    names = "id,aic_model,weights,system,backend,mode,isl,osl,concurrency,gpus,tp,pp,dp,moe_tp,moe_ep"
    good = "ok,meta-llama/Llama-3.1-8B-Instruct,fp8,h100_sxm,vllm,agg,1000,200,8,1,1,1,1,1,1"
    table = tmp_path / "table.csv"
    rows = [
        good,
        good.replace("ok,", "gpu,").replace("h100_sxm", "abacus"),
        good.replace("ok,", "number,").replace("1000", "x"),
    ]
    table.write_text("\n".join([names, *rows]) + "\n")
    results = [json.loads(line) for line in estimate_measured(str(table))]
    assert [answer["id"] for answer in results] == ["ok", "gpu", "number"]
    assert ["error" in answer for answer in results] == [False, True, True]


def loop(clients: float, **changes: float) -> Dynamics:
    figures = {
        "clients": clients, "rate_per_s": 0.0, "osl": 200.0, "decode_ranks": 2.0, "prefill_ranks": 2.0,
        "decode_base_s": 0.01, "decode_slope_s": 1e-4, "stretch_s": 0.05, "queue_s": 0.08, "service_s": 0.1,
        "first_steps": 1.5, "service_cv2": 0.5, "most_decoding": 64.0, **changes,
    }  # fmt: skip
    return Dynamics(**{name: np.array([value]) for name, value in figures.items()})


@settings(deadline=None, max_examples=60)
@given(clients=st.integers(1, 400), stretch=st.floats(0, 0.2), queue=st.floats(1e-3, 0.5), ranks=st.integers(1, 16))
def test_the_closed_loop_rests_where_littles_law_holds(clients: int, stretch: float, queue: float, ranks: int) -> None:
    rest = settle(loop(clients, stretch_s=stretch, queue_s=queue, decode_ranks=ranks, prefill_ranks=ranks))
    inside = rest.rate_per_s * (rest.ttft_s + 199.0 * rest.tpot_s)
    assert inside[0] == pytest.approx(clients, rel=1e-4)


def test_what_an_engine_adds_before_the_first_token_adds_to_it() -> None:
    plain = settle(loop(8, first_steps=0.0))
    waiting = settle(loop(8, first_steps=3.0))
    added = waiting.ttft_s[0] - plain.ttft_s[0]
    assert added == pytest.approx(3.0 * waiting.tpot_s[0], rel=0.05)
    assert waiting.rate_per_s[0] < plain.rate_per_s[0]


@settings(deadline=None, max_examples=40)
@given(clients=st.integers(1, 300), more=st.integers(1, 100))
def test_more_clients_bring_more_load_and_longer_times(clients: int, more: int) -> None:
    less, greater = settle(loop(clients)), settle(loop(clients + more))
    assert greater.rate_per_s[0] >= less.rate_per_s[0] * (1 - 1e-6)
    assert greater.tpot_s[0] >= less.tpot_s[0] * (1 - 1e-6)
    assert greater.ttft_s[0] >= less.ttft_s[0] * (1 - 1e-6)
