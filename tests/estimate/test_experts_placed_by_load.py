"""The load balancer of experts as a setting of deployments: columns of rows, fields of requests, refusals."""

import json

import pytest
from recipe_columns import filled

from planner.errors import PlannerError
from planner.estimate.case import Case, Refused
from planner.estimate.evaluate import Estimate, evaluate
from planner.estimate.measured import case_of_row
from planner.estimate.requests import cases_of_lines
from planner.plan.records import BY_NUMBER

WIDE = {
    "id": "w", "source": "inferencex", "family": "DeepSeek-R1/V3", "aic_model": "deepseek-ai/DeepSeek-R1",
    "weights": "nvfp4", "system": "gb200", "backend": "trtllm", "mode": "disagg", "isl": "1024", "osl": "8192",
    "concurrency": "8192", "gpus": "36", "measured": "2026-03-23",
    "prefill_workers": "1", "prefill_tp": "1", "prefill_pp": "1", "prefill_dp": "4", "prefill_moe_tp": "1",
    "prefill_moe_ep": "4", "decode_workers": "1", "decode_tp": "1", "decode_pp": "1", "decode_dp": "32",
    "decode_moe_tp": "1", "decode_moe_ep": "32",
}  # fmt: skip


def wide(**changes: str) -> Case:
    case = case_of_row({**WIDE, **changes})
    assert isinstance(case, Case)
    return case


def estimate(case: Case) -> Estimate | Refused:
    (answer,) = evaluate([case], None)
    return answer


def test_each_part_has_copies_of_its_own_and_none_unasked() -> None:
    plain, both = wide(), wide(prefill_redundant_experts="0", decode_redundant_experts="32")
    assert plain.prefill is not None
    assert both.prefill is not None
    assert (plain.prefill.redundant, plain.decode.redundant) == (BY_NUMBER, BY_NUMBER)
    assert (both.prefill.redundant, both.decode.redundant) == (0, 32)


def test_decoding_is_faster_where_experts_are_placed_and_holds_their_copies() -> None:
    plain, placed = estimate(wide()), estimate(wide(decode_redundant_experts="32"))
    assert isinstance(plain, Estimate)
    assert isinstance(placed, Estimate)
    assert placed.tpot_s < plain.tpot_s
    assert placed.memory_bytes > plain.memory_bytes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decode_redundant_experts": "-1"}, "`decode_redundant_experts` of the row cannot be -1"),
        ({"decode_redundant_experts": "1.5"}, "is no whole number: 1.5"),
        ({"redundant_experts": "0"}, "`redundant_experts` is of no part of a row of mode disagg"),
        ({"decode_redundant_experts": "many"}, "is no number: many"),
        (
            {"decode_redundant_experts": "32", "backend": "vllm", "backend_version": "0.9.0"},
            "vllm 0.9.0 has no `redundant_experts`",
        ),
    ],
)
def test_numbers_and_releases_that_cannot_be_are_refused(changes: dict[str, str], message: str) -> None:
    with pytest.raises(PlannerError, match=message):
        wide(**changes)


def test_a_release_that_can_is_taken() -> None:
    assert wide(decode_redundant_experts="32", backend="vllm", backend_version="0.9.2").decode.redundant == 32


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"decode_redundant_experts": "1"}, "redundant experts do not fill all ranks alike"),
        (
            {"decode_redundant_experts": "32", "decode_moe_ep": "1", "decode_moe_tp": "32"},
            "redundant experts are whole, on ranks of one stage",
        ),
        (
            {
                "decode_redundant_experts": "32", "decode_moe_ep": "1", "decode_dp": "1", "gpus": "5",
                "aic_model": "Qwen/Qwen3-32B", "weights": "fp8", "concurrency": "64",
            },
            "redundant experts need ranks that share experts",
        ),
    ],
)  # fmt: skip
def test_layouts_that_cannot_be_placed_are_refused(changes: dict[str, str], reason: str) -> None:
    answer = estimate(wide(**changes))
    assert isinstance(answer, Refused)
    assert answer.reason == reason


def test_requests_state_them_for_each_part() -> None:
    part = {"parallelism": {"dp": 32, "ep": 32}, "max_batch": 64}
    request = {
        "models": {"m": {"name": "deepseek-ai/DeepSeek-V3"}},
        "cluster": {"pools": [{"gpu": "h200", "nodes": 8}]},
        "engine": {"name": "sglang"},
        "workloads": [{"name": "w", "input_tokens": 1000, "output_tokens": 500, "load": {"concurrency": 512}}],
        "decision": {"mode": "disaggregated", "prefill": part, "decode": {**part, "redundant_experts": 32}},
    }
    (case,) = cases_of_lines([json.dumps(request)])
    assert isinstance(case, Case)
    assert case.prefill is not None
    assert (case.prefill.redundant, case.decode.redundant) == (BY_NUMBER, 32)


@pytest.mark.parametrize(
    ("changes", "copies"),
    [
        ({}, "32"),
        ({"concurrency": "4096"}, "32"),
        ({"concurrency": "2048"}, None),
        ({"weights": "fp8_block"}, None),
        ({"measured": "2025-12-19"}, None),
        ({"decode_dp": "16", "decode_moe_ep": "16", "concurrency": "4096"}, "0"),
        ({"decode_dp": "16", "decode_moe_ep": "16", "concurrency": "2253"}, None),
        ({"system": "b200_sxm"}, None),
        ({"backend": "sglang"}, None),
    ],
)
def test_public_recipes_place_experts_where_they_say_so(changes: dict[str, str], copies: str | None) -> None:
    assert filled({**WIDE, **changes}).get("decode_redundant_experts") == copies
