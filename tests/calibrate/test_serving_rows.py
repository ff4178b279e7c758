"""Rows of measured deployments: the load of a run, what is typical of it, and what follows from facts."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from emit_plans import DEEPSEEK, QWEN, RolePlan
from emit_plans import Case as PlanCase

from planner.calibrate.facts import completed_row, read_facts
from planner.calibrate.planned import deploy_planned
from planner.calibrate.serving import TABLE, ServingRow, read_serving
from planner.errors import PlannerError
from planner.estimate.case import Part
from planner.plan.store import plan_json

ROOT = Path(__file__).parent.parent.parent
REPORTS = ROOT / "tests" / "benchmark_reports"
MEASURED = ROOT.parent / "shared" / "data" / "serving" / "measured.csv"
FACTS = {"system": "h200_sxm", "backend": "vllm", "tp": "4", "model": QWEN}


def row_of(folder: Path, facts: Mapping[str, str] = FACTS, **fields: object) -> ServingRow:
    """The row of a result of vllm bench serve with other fields."""
    data: dict[str, Any] = json.loads((REPORTS / "vllm_bench.json").read_text(encoding="utf-8")) | fields
    path = folder / "result.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    (row,) = read_serving([str(path)], facts).rows
    return row


def test_times_are_medians_where_told_else_means(tmp_path: Path) -> None:
    row = row_of(tmp_path)
    assert row.ttft_s == pytest.approx(0.2)
    assert row.tpot_s == pytest.approx(0.02)
    row = row_of(tmp_path, median_ttft_ms=None, median_tpot_ms=None)
    assert row.ttft_s == pytest.approx(0.25)
    assert row.tpot_s == pytest.approx(0.022)


@pytest.mark.parametrize(
    ("limits", "clients", "rate_per_s"),
    [
        ({"max_concurrency": 16, "request_rate": "inf"}, 16, 0.0),
        ({"max_concurrency": None, "request_rate": 3.0}, 0, 3.0),
        ({"max_concurrency": 16, "request_rate": 3.3}, 0, 3.3),
        ({"max_concurrency": 16, "request_rate": 10.0}, 16, 0.0),
    ],
)
def test_a_cap_that_binds_makes_the_loop_a_closed_one(
    tmp_path: Path, limits: dict[str, Any], clients: int, rate_per_s: float
) -> None:
    """The run completed 3.2 requests a second."""
    case = row_of(tmp_path, **limits).case
    assert (case.clients, case.rate_per_s) == (clients, rate_per_s)


def test_requests_of_each_client_tell_what_the_opening_burst_weighs(tmp_path: Path) -> None:
    """66 requests ended, of 16 clients; an open loop has no clients."""
    assert row_of(tmp_path).requests_per_client == pytest.approx(66 / 16)
    assert row_of(tmp_path, max_concurrency=None, request_rate=3.0).requests_per_client is None


def test_waiting_for_most_of_a_request_is_queueing(tmp_path: Path) -> None:
    assert not row_of(tmp_path).saturated
    assert row_of(tmp_path, median_ttft_ms=4000.0).saturated


def test_a_row_holds_the_deployment_that_the_facts_make(tmp_path: Path) -> None:
    case = row_of(tmp_path, {**FACTS, "gpus": "8", "weights": "fp8", "backend_version": "0.11.0"}).case
    assert case.decode == Part(2, 4, 1, 1, 4, 1, max_batch=1024, chunk_tokens=8192)  # the engine's own limits
    assert (case.gpus, case.engine, case.version) == (8, "vllm", "0.11.0")
    assert case.isl == 1000.0


def test_settings_of_the_engine_are_facts(tmp_path: Path) -> None:
    case = row_of(tmp_path, {**FACTS, **read_facts(["kv_cache=fp8_e4m3", "max_batch=64", "async_scheduling=1"])}).case
    assert (case.arch.precisions.kv_cache, case.decode.max_batch, case.section) == ("fp8", 64, "vllm")


def test_experts_are_split_over_what_their_groups_leave() -> None:
    row = completed_row({**FACTS, "tp": "1", "dp": "8", "moe_ep": "8"}, "report", "guidellm")
    assert (row["moe_tp"], row["gpus"]) == ("1", "8")
    row = completed_row({**FACTS, "tp": "8", "moe_ep": "2"}, "report", "guidellm")
    assert (row["moe_tp"], row["gpus"]) == ("4", "8")


def test_pools_of_a_disaggregated_deployment_are_facts_too(tmp_path: Path) -> None:
    facts = {"system": "h200_sxm", "backend": "vllm", "model": DEEPSEEK, "weights": "fp8_block"}
    apart = {"prefill_tp": "8", "prefill_workers": "2", "decode_tp": "1", "decode_dp": "16", "decode_moe_ep": "16"}
    case = row_of(tmp_path, facts | apart).case
    assert case.prefill == Part(2, 8, 1, 1, 8, 1, chunk_tokens=8192)
    assert case.decode == Part(1, 1, 1, 16, 1, 16, max_batch=1024)
    assert case.gpus == 32
    del apart["decode_tp"]
    with pytest.raises(PlannerError, match="does not tell `decode_tp`"):
        row_of(tmp_path, facts | apart)


def test_the_last_of_a_repeated_fact_counts() -> None:
    assert read_facts(["tp=8", " tp = 4 "]) == {"tp": "4"}


def plan_of(folder: Path, *roles: RolePlan, model: str = QWEN) -> str:
    envelope, _ = PlanCase(roles, {"default": {"name": model}}).build()
    path = folder / "plan.json"
    path.write_text(plan_json(envelope), encoding="utf-8")
    return str(path)


def test_a_plan_gives_everything_but_the_load(tmp_path: Path) -> None:
    path = plan_of(tmp_path, RolePlan(replicas=2, degrees={"tp": 4, "moe_tp": 4}))
    report = str(REPORTS / "vllm_bench.json")
    (row,) = read_serving([report], {}, deploy_planned(path, {})).rows
    assert row.case.decode == Part(2, 4, 1, 1, 4, 1, 64, 8192)
    assert (row.case.arch.name, row.case.gpus, row.case.clients) == (QWEN, 8, 16)


def test_a_plan_tells_how_steps_are_cut_and_where_experts_lie(tmp_path: Path) -> None:
    limits = {"max_batch": 64, "chunk_tokens": 8192, "micro_batches": 2, "redundant_experts": 32}
    path = plan_of(tmp_path, RolePlan(degrees={"dp": 8, "ep": 8}, limits=limits), model=DEEPSEEK)
    (row,) = read_serving([str(REPORTS / "vllm_bench.json")], {}, deploy_planned(path, {})).rows
    assert row.case.decode == Part(1, 1, 1, 8, 1, 8, 64, 8192, 2, 32)


def test_a_plan_of_several_deployments_is_refused(tmp_path: Path) -> None:
    path = plan_of(tmp_path, RolePlan(name="a"), RolePlan(name="b"))
    with pytest.raises(PlannerError, match="one colocated role or one pair, found colocated, colocated"):
        deploy_planned(path, {})


@pytest.mark.skipif(not MEASURED.exists(), reason="the table of measured deployments is not here")
def test_every_row_of_the_table_is_taken() -> None:
    records = read_serving([str(MEASURED), str(REPORTS / "vllm_bench.json")], FACTS)
    assert records.left_out == ()
    assert records.by_reader == {
        TABLE: len(MEASURED.read_text(encoding="utf-8").splitlines()) - 1,
        "vllm bench serve": 1,
    }
    assert all(row.ttft_s and row.tpot_s for row in records.rows)
