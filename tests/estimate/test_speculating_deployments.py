"""Deployments that speculate: columns of tables, fields of requests, and what drafts do to the closed loop."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.calibrate.serving import read_serving
from planner.costs.operators.work import Work
from planner.costs.rates.step import step_time
from planner.costs.serving.speculation import drafting_step, tokens_per_step
from planner.estimate import estimate_jsonl, estimate_measured
from planner.estimate.batches import batch_of
from planner.estimate.measured import case_of_row

ROW = {
    "id": "0", "model": "deepseek-ai/DeepSeek-V3", "weights": "fp8_block", "system": "h200_sxm", "backend": "sglang",
    "backend_version": "0.5.9", "mode": "agg", "isl": "2000", "osl": "500", "concurrency": "16", "gpus": "8",
    "tp": "8", "pp": "1", "dp": "1", "moe_tp": "1", "moe_ep": "8",
}  # fmt: skip
DRAFTS = {"draft_tokens": "3", "acceptance": "0.7"}
REQUEST: dict[str, Any] = {
    "models": {"qwen": {"name": "Qwen/Qwen3-8B"}, "draft": {"name": "Qwen/Qwen3-0.6B"}},
    "cluster": {"pools": [{"gpu": "h100", "nodes": 1}]},
    "workloads": [{"model": "qwen", "input_tokens": 2000, "output_tokens": 300, "load": {"concurrency": 4}}],
    "options": {"speculation": {"method": "model", "model": "draft", "acceptance": 0.7}},
}


def predicted(folder: Path, *rows: dict[str, str]) -> list[dict[str, Any]]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [",".join(names), *(",".join(row.get(name, "") for name in names) for row in rows)]
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    answers = [json.loads(line) for line in estimate_measured(str(folder / "rows.csv"))]
    return [answer.get("prediction", answer) for answer in answers]


def answered(clients: int, **decision: object) -> dict[str, Any]:
    given = {"parallelism": {"tp": 1}, **decision}
    workload = {**REQUEST["workloads"][0], "load": {"concurrency": clients}}
    (line,) = estimate_jsonl([json.dumps({"id": "a", **REQUEST, "workloads": [workload], "decision": given})])
    answer: dict[str, Any] = json.loads(line)
    return answer


def test_rows_without_drafts_are_those_of_tables_without_the_columns(tmp_path: Path) -> None:
    (plain,) = predicted(tmp_path, ROW)
    (none,) = predicted(tmp_path, ROW | {"draft_tokens": "0", "acceptance": "0.7"})
    (empty,) = predicted(tmp_path, ROW | {"draft_tokens": "", "acceptance": ""})
    assert plain == none == empty


def test_drafts_pay_for_few_clients_and_not_for_many() -> None:
    few, few_drafting, many, many_drafting = (
        answered(clients, draft_tokens=drafts)["prediction"]["output_tokens_per_s_per_gpu"]
        for clients in (4, 256)
        for drafts in (0, 3)
    )
    assert few_drafting > 1.2 * few
    assert many_drafting < many


def test_tokens_are_never_later_as_more_drafts_are_right(tmp_path: Path) -> None:
    shares = ("0", "0.3", "0.6", "0.9", "1")
    predictions = predicted(tmp_path, *(ROW | {"draft_tokens": "3", "acceptance": share} for share in shares))
    assert np.all(np.diff([prediction["tpot_s"] for prediction in predictions]) < 0.0)


def test_a_lone_client_has_a_step_for_the_tokens_that_it_yields(tmp_path: Path) -> None:
    row = ROW | DRAFTS | {"concurrency": "1"}
    (prediction,) = predicted(tmp_path, row)
    case = case_of_row(row)
    batch = batch_of([case], None)
    assert case.drafter is not None
    work, shards = Work.decode(1.0, 2250.0).with_drafts(3.0), batch._shards(False)
    step_s = float(step_time(case.arch, batch.costs.pricer, shards, work, batch.costs.engine).seconds[0])
    step_s += float(drafting_step(case.drafter, batch.costs.pricer, shards, work).device_s[0])
    assert prediction["tpot_s"] == pytest.approx(step_s / float(tokens_per_step(3, 0.7)), rel=0.02)


def test_the_drafter_takes_memory(tmp_path: Path) -> None:
    plain, heads, stated = predicted(tmp_path, ROW, ROW | DRAFTS, ROW | DRAFTS | {"draft_step_s": "0.001"})
    assert heads["memory_bytes"] > plain["memory_bytes"] + 1e9
    assert stated["memory_bytes"] == plain["memory_bytes"]


def test_a_request_names_its_drafts() -> None:
    plain, drafting = answered(1)["prediction"], answered(1, draft_tokens=3)["prediction"]
    assert drafting["tpot_s"] < 0.9 * plain["tpot_s"]
    assert drafting["ttft_s"] > plain["ttft_s"]  # prompts go through the draft model too


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"draft_tokens": "3"}, "missing or no number"),
        ({"draft_tokens": "3", "acceptance": "1.5"}, "acceptance"),
        ({"draft_tokens": "99", "acceptance": "0.5"}, "draft_tokens"),
        ({"draft_tokens": "-1", "acceptance": "0.5"}, "draft_tokens"),
        ({"model": "Qwen/Qwen3-32B", "weights": "bf16", **DRAFTS}, "no prediction heads"),
        ({**DRAFTS, "draft_model": "Qwen/Qwen3-0.6B"}, "vocabulary"),
        ({**DRAFTS, "draft_model": "Qwen/Qwen3-0.6B", "draft_step_s": "0.001"}, "drafter"),
    ],
)
def test_rows_whose_drafts_cannot_be_say_so(tmp_path: Path, more: dict[str, str], named: str) -> None:
    (answer,) = predicted(tmp_path, ROW | more)
    assert named in answer["error"]


def test_requests_whose_drafts_cannot_be_say_so() -> None:
    assert "draft_tokens" in answered(1, draft_tokens=-1)["error"]
    bare = {**REQUEST, "options": {}, "decision": {"draft_tokens": 2}}
    (line,) = estimate_jsonl([json.dumps({"id": "a", **bare})])
    assert "no drafter" in json.loads(line)["error"]


def test_measured_rows_with_drafts_are_no_part_of_a_fit(tmp_path: Path) -> None:
    times = {"ttft_ms": "300", "tpot_ms": "20"}
    predicted(tmp_path, ROW | times | {"id": "plain"}, ROW | times | DRAFTS | {"id": "drafted"})
    rows = read_serving([str(tmp_path / "rows.csv")], {})
    assert [row.case.id for row in rows.rows] == ["plain"]
    assert "drafted: it speculates" in rows.left_out[0]
