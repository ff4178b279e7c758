"""Plans whose engine places experts by load: where that can be, when it is chosen, what plans say and checks see."""

import json
from typing import Any

import pytest
from serve_problems import broken_rules, objective_of, small
from static_level import solve

from planner.errors import Infeasible, PlannerError
from planner.explain.explanation import explain_plan
from planner.kinds.serve.forbidden import rules_against
from planner.kinds.serve.options import ServeDecision
from planner.kinds.serve.steady.search import prepare
from planner.kinds.serve.steady.shapes import InstanceShape, filling_rule, placing_rule
from planner.models.library import find_model
from planner.plan.instance_types import read_type, role_degrees, shape_text
from planner.plan.schema import Envelope, Parallelism, Role

ALL: list[str | int] = ["off", 0, 32]


def plan(copies: list[str | int] | None) -> Envelope:
    """DeepSeek-V3 on 12 nodes of 8 H200, experts over two nodes and more."""
    options: dict[str, Any] = {
        "modes": ["disaggregated"], "tp": [1], "pp": [1], "dp": [16, 32], "ep": [16, 32],
        "max_batch": [64, 128], "chunk_tokens": [8192],
    }  # fmt: skip
    edits = {
        "models": {"llama": {"name": "deepseek-ai/DeepSeek-V3"}},
        "cluster.pools.0": {"gpu": "h200", "gpus": 96},
        "workloads.0": {
            "name": "chat", "input_tokens": 4000, "output_tokens": 500, "slo": {"ttft": "5s", "tpot": "100ms"},
        },
        "engine": {"name": "sglang"},
        "options": options | ({} if copies is None else {"redundant_experts": copies}),
    }  # fmt: skip
    return solve(small(edits))


@pytest.fixture(scope="module")
def chosen() -> Envelope:
    return plan(ALL)


def test_experts_lie_by_number_unless_asked_otherwise_and_the_plan_says_what_that_costs(chosen: Envelope) -> None:
    plain = plan(None)
    decision = ServeDecision.model_validate(plain.decision)
    assert all("redundant_experts" not in role.limits for role in decision.roles)
    assert any("wait for the fullest, at 1.45 times the mean load" in text for text in plain.assumptions)
    assert any("`options.redundant_experts` lets the engine place them by load" in text for text in plain.assumptions)
    assert "redundant_experts" not in plain.certificate.axes
    assert objective_of(chosen) > 1.1 * objective_of(plain)


def test_wide_prefill_is_placed_by_load_where_that_is_searched(chosen: Envelope) -> None:
    decision = ServeDecision.model_validate(chosen.decision)
    (prefill,) = (role for role in decision.roles if role.function == "prefill")
    assert prefill.limits["redundant_experts"] in (0, 32)
    assert broken_rules(chosen) == []
    assert any("places experts by load" in reason for reason in decision.reasons())
    assert "places experts by load" in str(explain_plan(chosen, decision).facts)
    assert any("places all by load: the fullest of its 16 ranks has 1.09" in text for text in chosen.assumptions)
    assert "with experts by number" in str(chosen.certificate.next_best)
    assert chosen.certificate.axes["redundant_experts"] == ALL


@pytest.mark.parametrize("edit", [None, 16])
def test_a_plan_that_claims_other_copies_does_what_its_proof_does_not(chosen: Envelope, edit: int | None) -> None:
    decision = json.loads(json.dumps(chosen.decision))
    (prefill,) = (role for role in decision["roles"] if role["function"] == "prefill")
    del prefill["limits"]["redundant_experts"]
    prefill["limits"] |= {} if edit is None else {"redundant_experts": edit}
    assert broken_rules(chosen.model_copy(update={"decision": decision}))


def test_a_check_refuses_copies_that_do_not_fill_the_ranks(chosen: Envelope) -> None:
    decision = json.loads(json.dumps(chosen.decision))
    (prefill,) = (role for role in decision["roles"] if role["function"] == "prefill")
    prefill["limits"]["redundant_experts"] = 3
    broken = broken_rules(chosen.model_copy(update={"decision": decision}))
    assert "engine.shape" in str(broken)


@pytest.mark.parametrize(
    ("shape", "model", "rule"),
    [
        (InstanceShape(1, 1, 16, 1, 16, redundant=32), "deepseek-ai/DeepSeek-V3", None),
        (InstanceShape(1, 1, 16, 1, 16, redundant=0), "deepseek-ai/DeepSeek-V3", None),
        (InstanceShape(1, 1, 16, 1, 16), "deepseek-ai/DeepSeek-V3", None),
        (InstanceShape(1, 1, 16, 1, 16, redundant=1), "deepseek-ai/DeepSeek-V3", "redundant experts do not fill"),
        (InstanceShape(8, 1, 1, 8, 1, redundant=0), "deepseek-ai/DeepSeek-V3", "redundant experts are whole"),
        (InstanceShape(1, 1, 1, 1, 1, redundant=0), "deepseek-ai/DeepSeek-V3", "redundant experts need ranks"),
        (InstanceShape(1, 2, 16, 1, 16, redundant=0), "deepseek-ai/DeepSeek-V3", "redundant experts are whole"),
        (InstanceShape(1, 1, 2, 1, 1, redundant=8), "Qwen/Qwen3-32B", "redundant experts need ranks"),
    ],
)
def test_engines_place_what_they_can(shape: InstanceShape, model: str, rule: str | None) -> None:
    forbidding = placing_rule(shape, find_model(model))
    assert forbidding is None if rule is None else (forbidding or "").startswith(rule)


def test_groups_of_devices_apart_may_split_the_experts_that_they_place() -> None:
    arch = find_model("stepfun-ai/step3-fp8")
    assert filling_rule(InstanceShape(4, 1, 4, 4, 4, redundant=16), arch) is None
    assert filling_rule(InstanceShape(4, 1, 4, 4, 4, redundant=1), arch) is not None


@pytest.mark.parametrize(
    ("edits", "said"),
    [
        ({"options": {"redundant_experts": ["off", 0]}}, "`llama` without experts: none can be copied"),
        (
            {
                "models": {"llama": {"name": "deepseek-ai/DeepSeek-V3"}},
                "engine": {"name": "vllm", "version": "0.9.0"},
                "options": {"redundant_experts": [32]},
            },
            "vllm 0.9.0 has no `redundant_experts`",
        ),
    ],
)
def test_models_without_experts_and_releases_without_a_balancer_are_refused(edits: dict[str, Any], said: str) -> None:
    with pytest.raises(PlannerError, match=said) as caught:
        prepare(small(edits))
    assert "options.redundant_experts" in str(caught.value.where)


def test_instances_that_share_no_experts_are_no_plan_where_all_must_be_placed() -> None:
    """One GPU an instance, all of which must place experts by load."""
    edits = {
        "models": {"llama": {"name": "Qwen/Qwen3-30B-A3B"}},
        "options": {"modes": ["colocated"], "tp": [1], "pp": [1], "dp": [1], "ep": [1], "redundant_experts": [0]},
    }
    assert "redundant experts need ranks that share experts" in rules_against(small(edits))
    with pytest.raises(Infeasible):
        solve(small(edits))


def test_labels_and_names_say_so() -> None:
    shape = InstanceShape(1, 1, 16, 1, 16, redundant=32)
    assert shape.label == "dp16ep16 with 32 redundant experts"
    assert shape.degrees == (1, 1, 16, 1, 16, 1, 1, 32)
    assert shape.limits == {"redundant_experts": 32}
    assert InstanceShape(1, 2, 16, 1, 16, 2, 2).limits == {"micro_batches": 2, "pieces": 2}
    assert InstanceShape(1, 1, 16, 1, 16, redundant=0).limits == {"redundant_experts": 0}
    role = Role(
        name="d",
        function="decode",
        pool="h200",
        replicas=1,
        parallelism=Parallelism(dp=16, ep=16),
        limits={"max_batch": 64, "redundant_experts": 32},
    )
    assert role_degrees(role) == shape.degrees
    named = read_type("decode/m/1x1x16x1x16x1x1x32/64/0")
    assert named is not None
    assert named.degrees == shape.degrees
    assert shape_text(named.degrees) == "dp16 ep16 with 32 redundant experts"
    assert shape_text((1, 1, 16, 1, 16)) == "dp16 ep16"
