"""Speculating plans as launch scripts: what engines are told, under their own parsers, and what is refused."""

import json
import shlex
from typing import Any

import pytest
from emit_plans import DEEPSEEK, QWEN, Case, RolePlan

from planner.emit.registry import emit
from planner.errors import PlannerError
from planner.kinds.serve.options import ServeDecision
from planner.plan.schema import Envelope

LIMITS = {"max_batch": 64, "chunk_tokens": 8192, "max_context_tokens": 8192}
DRAFTS, ONE = {"draft_tokens": 3}, {"draft_tokens": 1}
MTP = {"method": "mtp", "acceptance": 0.7}
MODEL = {"method": "model", "model": "draft", "acceptance": 0.7}
STATED = {"method": "stated", "draft_step_s": 1e-3, "acceptance": 0.7}
SMALL = {"default": {"name": QWEN, "weights": "fp8"}, "draft": {"name": "Qwen/Qwen3-0.6B"}}
LARGE = {"default": {"name": DEEPSEEK}}


def colocated(models: dict[str, dict[str, str]], limits: dict[str, int], **degrees: int) -> Case:
    return Case((RolePlan(degrees=degrees, limits=LIMITS | limits),), models)


APART = Case(
    (
        RolePlan("prefill", 1, {"tp": 2}, LIMITS | ONE),
        RolePlan("decode", 1, {"tp": 2}, {"max_batch": 256, "max_context_tokens": 8192} | DRAFTS),
    ),
    SMALL,
)
PLANS: dict[str, tuple[Case, dict[str, Any]]] = {
    "mtp": (colocated(LARGE, DRAFTS, tp=8, ep=8), MTP),
    "mtp-dp": (colocated(LARGE, DRAFTS, dp=8, ep=8), MTP),
    "mtp-qwen": (colocated({"default": {"name": "Qwen/Qwen3.5-27B"}}, ONE, tp=2), MTP),
    "draft-model": (colocated(SMALL, DRAFTS, tp=2), MODEL),
    "draft-model-fp8": (colocated(SMALL | {"draft": {"name": "Qwen/Qwen3-0.6B", "weights": "fp8"}}, ONE, tp=1), MODEL),
    "prefill-and-decode": (APART, MODEL),
    "ngram": (colocated({"default": {"name": QWEN}}, DRAFTS, tp=2), STATED | {"algorithm": "ngram"}),
}


def built(case: Case, speculation: dict[str, Any] | None) -> tuple[Envelope, ServeDecision]:
    envelope, decision = case.build()
    options = {} if speculation is None else {"options": {"speculation": speculation}}
    return envelope.model_copy(update={"inputs": {**envelope.inputs, **options}}), decision


def commands(case: Case, speculation: dict[str, Any], target: str) -> list[list[str]]:
    files = emit(*built(case, speculation), target)
    texts = (text.replace("\\\n", " ") for name, text in files.items() if name != "launch-router.sh")
    program = {"vllm": "vllm serve ", "sglang": "sglang.launch_server"}[target]
    return [shlex.split(line.rstrip("& ")) for text in texts for line in text.splitlines() if program in line]


def value(command: list[str], flag: str) -> str:
    return command[command.index(flag) + 1]


def test_vllm_is_told_of_prediction_heads_and_of_a_draft_model() -> None:
    (heads,) = commands(*PLANS["mtp"], "vllm")
    assert json.loads(value(heads, "--speculative-config")) == {"method": "mtp", "num_speculative_tokens": 3}
    (model,) = commands(*PLANS["draft-model"], "vllm")
    assert json.loads(value(model, "--speculative-config")) == {
        "method": "draft_model", "model": "Qwen/Qwen3-0.6B", "num_speculative_tokens": 3,
        "draft_tensor_parallel_size": 2,
    }  # fmt: skip
    (narrow,) = commands(*PLANS["draft-model-fp8"], "vllm")
    assert json.loads(value(narrow, "--speculative-config"))["quantization"] == "fp8"


def test_sglang_verifies_a_chain_and_leaves_a_draft_model_in_its_own_format() -> None:
    (heads,) = commands(*PLANS["mtp"], "sglang")
    wanted = {"algorithm": "NEXTN", "num-steps": "3", "eagle-topk": "1", "num-draft-tokens": "4"}
    assert {name: value(heads, f"--speculative-{name}") for name in wanted} == wanted
    (model,) = commands(*PLANS["draft-model"], "sglang")
    wanted = {"algorithm": "STANDALONE", "draft-model-path": "Qwen/Qwen3-0.6B", "draft-model-quantization": "unquant"}
    assert {name: value(model, f"--speculative-{name}") for name in wanted} == wanted


def test_steps_and_graphs_hold_the_drafts_of_a_full_batch() -> None:
    prefill, decode = commands(*PLANS["prefill-and-decode"], "vllm")
    assert json.loads(value(prefill, "--speculative-config"))["num_speculative_tokens"] == 3  # as many as decode has
    assert "--max-cudagraph-capture-size" not in prefill
    assert value(decode, "--max-cudagraph-capture-size") == "1024"
    (mixed,) = commands(*PLANS["draft-model"], "vllm")
    assert value(mixed, "--max-num-batched-tokens") == str(8192 + 4 * 64)


def test_a_head_from_a_checkpoint_of_its_own_is_named() -> None:
    head = STATED | {"algorithm": "eagle3", "checkpoint": "someone/Qwen3-32B-eagle3"}
    case = colocated({"default": {"name": QWEN}}, DRAFTS, tp=2)
    (vllm,), (sglang,) = (commands(case, head, target) for target in ("vllm", "sglang"))
    assert json.loads(value(vllm, "--speculative-config"))["model"] == head["checkpoint"]
    assert value(sglang, "--speculative-draft-model-path") == head["checkpoint"]
    assert value(sglang, "--speculative-algorithm") == "EAGLE3"


@pytest.mark.parametrize("target", ["vllm", "sglang"])
def test_what_no_engine_can_be_told_is_refused(target: str) -> None:
    plain = colocated({"default": {"name": QWEN}}, DRAFTS, tp=2)
    mixed = Case((APART.roles[0], RolePlan("decode", 1, {"tp": 2}, LIMITS)), SMALL)
    for case, speculation, named in (
        (plain, STATED, "only the time is stated"),
        (plain, None, "names no drafter"),
        (colocated({"default": {"name": QWEN}}, DRAFTS, pp=2), STATED | {"algorithm": "ngram"}, "pipeline"),
        (mixed, MODEL, "only one of the two drafts"),
    ):
        with pytest.raises(PlannerError, match=named):
            emit(*built(case, speculation), target)


def test_sglang_refuses_a_draft_model_beside_data_parallel_attention() -> None:
    models = {"default": {"name": "Qwen/Qwen3-30B-A3B"}, "draft": {"name": "Qwen/Qwen3-0.6B"}}
    with pytest.raises(PlannerError, match="without data-parallel ranks"):
        emit(*built(colocated(models, DRAFTS, dp=4, ep=4), MODEL), "sglang")
