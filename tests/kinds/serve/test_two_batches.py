"""Serving plans whose steps are cut in two batches: where engines can, when it is chosen, what of it is checked."""

import json
from typing import Any

import pytest
from pydantic import ValidationError
from serve_problems import broken_rules, objective_of, small
from static_level import solve

from planner.engines.load import release_of
from planner.explain.explanation import explain_plan
from planner.kinds.serve.options import ServeDecision, ServeOptions
from planner.kinds.serve.steady.shapes import InstanceShape, halving_rule
from planner.models.library import find_model
from planner.plan.schema import Envelope

BOTH, WHOLE = ["off", "two-batch"], ["off"]
WIDE = InstanceShape(1, 1, 16, 1, 16, 2)


def plan(overlap: list[str] | None, **more: Any) -> Envelope:  # noqa: ANN401
    """DeepSeek-V3 on 12 nodes of 8 H800, long prompts."""
    options: dict[str, Any] = {
        "modes": ["disaggregated"], "tp": [1], "pp": [1], "dp": [16, 32, 64], "ep": [16, 32, 64],
        "max_batch": [32, 128], "chunk_tokens": [4096],
    }  # fmt: skip
    edits = {
        "models": {"llama": {"name": "deepseek-ai/DeepSeek-V3", "weights": "fp8", "kv_cache": "fp8"}},
        "cluster.pools.0": {"gpu": "h800", "gpus": 96},
        "workloads.0": {
            "name": "chat", "input_tokens": 4000, "output_tokens": 500, "slo": {"ttft": "5s", "tpot": "100ms"},
        },
        "engine": {"name": "sglang"},
        "options": options | ({} if overlap is None else {"overlap": overlap}) | more,
    }  # fmt: skip
    return solve(small(edits))


@pytest.fixture(scope="module")
def chosen() -> Envelope:
    return plan(BOTH)


def limits(envelope: Envelope) -> dict[str, Any]:
    return {role.function: role.limits for role in ServeDecision.model_validate(envelope.decision).roles}


def test_steps_are_whole_unless_asked_otherwise(chosen: Envelope) -> None:
    whole = plan(None)
    assert ServeOptions().overlap == ("off",)
    assert all("micro_batches" not in stated for stated in limits(whole).values())
    assert whole.decision == plan(WHOLE).decision
    assert objective_of(whole) < objective_of(chosen)


def test_prefill_of_long_prompts_is_cut_where_that_is_searched(chosen: Envelope) -> None:
    assert limits(chosen)["prefill"]["micro_batches"] == 2
    assert broken_rules(chosen) == []
    decision = ServeDecision.model_validate(chosen.decision)
    assert "in two batches" in str(explain_plan(chosen, decision).facts)
    assert any("`prefill` cuts its steps in two batches" in reason for reason in decision.reasons())
    assert "without two batches" in str(chosen.certificate.next_best)
    assert chosen.certificate.axes["overlap"] == BOTH


def test_a_plan_that_claims_whole_steps_does_what_its_proof_does_not(chosen: Envelope) -> None:
    decision = json.loads(json.dumps(chosen.decision))
    (prefill,) = (role for role in decision["roles"] if role["function"] == "prefill")
    del prefill["limits"]["micro_batches"]
    assert broken_rules(chosen.model_copy(update={"decision": decision}))


@pytest.mark.parametrize(
    ("shape", "model", "engine", "rule"),
    [
        (WIDE, "deepseek-ai/DeepSeek-V3", "sglang", None),
        (WIDE, "deepseek-ai/DeepSeek-V3", "vllm", None),
        (WIDE, "Qwen/Qwen3-235B-A22B", "sglang", None),
        (InstanceShape(1, 1, 16, 1, 16), "openai/gpt-oss-120b", "trtllm", None),
        (WIDE, "deepseek-ai/DeepSeek-V3", "trtllm", "the engine does not cut steps in two batches"),
        (WIDE, "openai/gpt-oss-120b", "sglang", "the engine does not cut steps of this model"),
        (InstanceShape(1, 2, 16, 1, 16, 2), "deepseek-ai/DeepSeek-V3", "vllm", "the engine cuts no steps of pipelines"),
        (
            InstanceShape(8, 1, 1, 1, 8, 2),
            "deepseek-ai/DeepSeek-V3",
            "sglang",
            "two batches need whole experts on data-parallel",
        ),
        (InstanceShape(1, 1, 16, 16, 1, 2), "deepseek-ai/DeepSeek-V3", "sglang", "two batches need whole experts"),
    ],
)
def test_an_engine_cuts_what_it_can(shape: InstanceShape, model: str, engine: str, rule: str | None) -> None:
    forbidding = halving_rule(shape, find_model(model), release_of(engine, None))
    assert forbidding is None if rule is None else (forbidding or "").startswith(rule)


def test_simulation_does_not_judge_cut_steps() -> None:
    with pytest.raises(ValidationError, match="steps are whole"):
        ServeOptions.model_validate({"overlap": BOTH, "judged_by": "simulation"})


def test_labels_and_names_say_so() -> None:
    assert WIDE.label == "dp16ep16 in two batches"
    assert WIDE.degrees == (1, 1, 16, 1, 16, 2)
    assert InstanceShape(1, 1, 16, 1, 16).degrees == (1, 1, 16, 1, 16)
