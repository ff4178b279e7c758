"""Formats go by every name that engines, Hugging Face and NVIDIA's tools write, and by no other."""

import json

import pytest

from planner.errors import PlannerError
from planner.estimate import estimate_jsonl
from planner.estimate.measured import case_of_row
from planner.estimate.training_columns import precision_of
from planner.models.architecture import BITS
from planner.models.formats import ALIASES, format_named, names_of
from planner.models.library import find_model, with_precision
from planner.problem.schema import ModelSpec

ROW = {
    "id": "r", "model": "Qwen/Qwen3-8B", "system": "h100_sxm", "backend": "vllm", "mode": "agg", "isl": "1000",
    "osl": "100", "concurrency": "8", "gpus": "1", "tp": "1", "pp": "1", "dp": "1", "moe_tp": "1", "moe_ep": "1",
}  # fmt: skip


@pytest.mark.parametrize(
    ("written", "ours"),
    [
        ("torch.bfloat16", "bf16"), ("BF16", "bf16"), ("half", "fp16"), ("float8_e4m3fn", "fp8"), ("FP8", "fp8"),
        ("fp8-per-block", "fp8_block"), ("FP8_PB_WO", "fp8_block"), ("modelopt_fp4", "nvfp4"), ("int4_wo", "int4"),
        ("W4A16_AWQ", "int4"), ("gptq_marlin", "int4"), ("awq", "int4"), ("w4a16_mxfp4", "mxfp4"), ("w8a8", "int8"),
    ],
)  # fmt: skip
def test_names_of_engines_and_tools_are_read(written: str, ours: str) -> None:
    assert format_named(written, BITS) == ours
    assert ModelSpec.model_validate({"name": "m", "weights": written}).weights == ours
    by_name = case_of_row({**ROW, "weights": written}).arch.precisions
    assert by_name == case_of_row({**ROW, "weights": ours}).arch.precisions


def test_no_name_means_two_formats() -> None:
    names = names_of(ALIASES)
    assert len(names) == len(set(names))
    assert set(BITS) <= set(ALIASES)


def test_the_checkpoints_own_format_can_be_written_out() -> None:
    spec = ModelSpec.model_validate({"name": "m", "weights": "auto", "kv_cache": "auto"})
    assert (spec.weights, spec.kv_cache) == (None, None)
    assert case_of_row({**ROW, "weights": "checkpoint default"}).arch.precisions.attention == "bf16"


@pytest.mark.parametrize(("written", "near"), [("fp4", "nvfp4"), ("int8_wo", "int8"), ("bfloat", "bfloat16")])
def test_unknown_formats_are_refused_with_the_nearest(written: str, near: str) -> None:
    with pytest.raises(PlannerError, match=f"unknown weight format `{written}`") as error:
        with_precision(find_model("Qwen/Qwen3-8B"), written)
    assert f"`{near}`" in error.value.hint
    with pytest.raises(PlannerError, match=f"unknown weight format `{written}`"):
        case_of_row({**ROW, "weights": written})


def test_requests_of_an_estimate_take_any_name() -> None:
    request = {
        "models": {"m": {"name": "Qwen/Qwen3-8B", "weights": "float8_e4m3fn", "kv_cache": "fp8_e4m3"}},
        "cluster": {"pools": [{"gpu": "h100_sxm", "gpus": 1}]},
        "workloads": [{"input_tokens": 100, "output_tokens": 10, "load": {"concurrency": 1}}],
        "decision": {},
    }
    ours = {**request, "models": {"m": {"name": "Qwen/Qwen3-8B", "weights": "fp8", "kv_cache": "fp8"}}}
    written, named = estimate_jsonl([json.dumps(request), json.dumps(ours)])
    assert json.loads(written)["prediction"] == json.loads(named)["prediction"]


def test_training_rows_with_an_unknown_precision_are_refused() -> None:
    assert (precision_of("bfloat16"), precision_of("fp8-te"), precision_of("")) == ("bf16", "fp8", "bf16")
    with pytest.raises(PlannerError, match="unknown precision `fp9`"):
        precision_of("fp9")


def test_fp8_of_a_checkpoint_in_blocks_is_its_blocks_and_of_plain_floats_is_not() -> None:
    blocks, plain = find_model("Qwen/Qwen3-235B-A22B-FP8"), find_model("Qwen/Qwen3-235B-A22B")
    assert with_precision(blocks, "fp8").precisions.experts == "fp8_block"
    assert with_precision(plain, "fp8").precisions.experts == "fp8"
    assert with_precision(blocks, "bf16").precisions.experts == "bf16"
