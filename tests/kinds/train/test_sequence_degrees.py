"""Context-parallel degrees by document: Megatron-LM's rule, every token placed, bounds, what is refused."""

import copy
from math import ceil, log2
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from static_level import solve
from train_problems import problem

from planner.check import check_plan
from planner.emit.registry import emit
from planner.errors import PlannerError
from planner.kinds.train.decision import TrainDecision
from planner.kinds.train.whole_run.sequence_degrees import least_degree
from planner.plan.schema import Envelope

DOCUMENTS = [{"tokens": 32768, "share": 1}, {"tokens": 4096, "share": 6}, {"tokens": 1024, "share": 9}]


def data(**options: Any) -> dict[str, Any]:  # noqa: ANN401
    given_options = {
        "global_batch": 16,
        "sequence_tokens": 32768,
        "task": "sft",
        "documents": DOCUMENTS,
        "degrees_by_document": True,
        "search": {"tp": 2, "cp": 4, "dp": 2},
        **options,
    }
    return problem("meta-llama/Llama-3.1-8B", **given_options)


@pytest.fixture(scope="module")
def plan() -> Envelope:
    return solve(data())


def degrees_of(envelope: Envelope) -> Any:  # noqa: ANN401 - plain data
    return envelope.decision["sequence_degrees"]


@given(st.integers(1, 1 << 20), st.integers(1, 1 << 17))
def test_the_least_degree_is_that_of_megatron(tokens: int, most: int) -> None:
    assert least_degree(tokens, most) == max(1, 2 ** ceil(log2(tokens / most)))


def test_a_step_has_its_tokens_in_documents_whose_degrees_the_threshold_gives(plan: Envelope) -> None:
    made = degrees_of(plan)
    tokens = sum(row["tokens"] * row["documents"] for row in made["documents"])
    assert tokens == pytest.approx(16 * 32768, rel=0.05)
    for row in made["documents"]:
        assert row["tokens"] <= row["degree"] * made["max_tokens_per_rank"]
        assert row["degree"] == 1 or row["tokens"] > row["degree"] // 2 * made["max_tokens_per_rank"]


def test_no_degrees_cross_the_bound_and_free_ones_are_no_worse_than_the_rule(plan: Envelope) -> None:
    made = degrees_of(plan)
    assert made["bound_s"] <= made["free_s"] * (1 + 1e-9)
    assert made["free_s"] <= made["span_s"] * (1 + 1e-9)
    decision = TrainDecision.model_validate(plan.decision)
    assert all(finding.ok for finding in check_plan(plan, decision))


@pytest.mark.parametrize("change", [{"span_s": 1.0}, {"max_tokens_per_rank": 77}, {"bound_s": 1e9}])
def test_other_degrees_than_those_derived_again_are_told(plan: Envelope, change: dict[str, Any]) -> None:
    decision: Any = copy.deepcopy(plan.decision)
    decision["sequence_degrees"].update(change)
    changed = plan.model_copy(update={"decision": decision})
    findings = check_plan(changed, TrainDecision.model_validate(decision))
    assert any(not finding.ok and "sequence_degrees" in finding.where + finding.what for finding in findings)


def test_megatron_gets_the_threshold_and_others_refuse(plan: Envelope) -> None:
    decision = TrainDecision.model_validate(plan.decision)
    script = emit(plan, decision, "megatron-lm")["launch.sh"]
    most = degrees_of(plan)["max_tokens_per_rank"]
    assert f"--max-seqlen-per-dp-cp-rank {most}" in script
    assert "--hybrid-context-parallel" in script
    assert "--calculate-per-token-loss" in script
    with pytest.raises(PlannerError, match="one context-parallel degree"):
        emit(plan, decision, "megatron-bridge")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"documents": []}, "without documents"),
        ({"task": "lora"}, "with task `lora`"),
        ({"search": {"pp": 2}}, "in a pipeline"),
        ({"search": {"zero_stage": 3}}, "with FSDP"),
        ({"documents": [{"tokens": 65536, "share": 1}]}, "65536 tokens in shorter sequences"),
        (
            {
                "search": {"tp": 2, "cp": 3, "dp": 2},
                "sequence_tokens": 33024,
                "documents": [{"tokens": 33024, "share": 1}],
            },
            "does not fit",
        ),
    ],
)
def test_what_does_not_go_with_degrees_by_document_is_one_clear_error(options: dict[str, Any], says: str) -> None:
    with pytest.raises(PlannerError, match=says):
        solve(data(**options))


def test_another_engine_is_refused_by_name() -> None:
    with pytest.raises(PlannerError, match="one context-parallel degree for all documents"):
        solve(data() | {"engine": {"name": "megatron-bridge"}})
