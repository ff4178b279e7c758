"""Other replicas late in a rollout as a decision of the kind: chosen where they pay, replayed by check."""

from pathlib import Path
from typing import Any

import pytest
import rl_written
from broken_rl_plans import failed

from planner.api import solve
from planner.emit.registry import emit
from planner.errors import PlannerError
from planner.kinds.rl.decision import RlDecision
from planner.plan.schema import Envelope

CURVE = {"pool": "a", "token_s": 1e-7, "prefill_tokens_per_s": 1e5, "max_running": 64, "kv_tokens": 400_000}
PROBLEM: dict[str, Any] = {
    "kind": "rl",
    "models": {"policy": {"name": "Qwen/Qwen2.5-7B"}},
    "cluster": {"pools": [{"gpu": "h800_sxm", "name": "a", "nodes": 1}]},
    "workloads": [{"input_tokens": 200, "output_tokens": {"mean": 2000, "cv": 1.5}}],
    "objective": {"minimize": "iteration_time"},
    "options": {
        "algorithm": "grpo",
        "prompts": 32,
        "samples_per_prompt": 8,
        "arrangements": ["colocated"],
        "late_thresholds": [0.05, 0.2],
        "late_change": "4s",
        "costs": {
            "generation": [
                {**CURVE, "tp": 1, "step_s": 0.02, "sequence_s": 2e-4},
                {**CURVE, "tp": 8, "step_s": 0.006, "sequence_s": 4e-4},
            ],
            "training": [
                {"pool": "a", "tp": 1, "train_tokens_per_s": 900, "forward_tokens_per_s": 3000, "micro_tokens": 8192}
            ],
        },
    },
}


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Envelope:
    return solve(rl_written.written(PROBLEM, tmp_path_factory.mktemp("late")))


def test_few_long_samples_go_on_on_replicas_of_more_gpus(plan: Envelope, tmp_path: Path) -> None:
    decision = RlDecision.model_validate(plan.decision)
    late = decision.late_rollout
    assert late is not None
    assert late.changed_s < late.generated_s < late.unchanged_s
    sizes = {role.name: role.parallelism.tp for role in decision.roles}
    assert (sizes["rollout"], sizes["rollout-late"]) == (1, 8)
    assert plan.certificate.status == "optimal"
    assert not failed(plan.model_dump(mode="json", by_alias=True))
    without = solve(rl_written.written(PROBLEM, tmp_path, late_thresholds=[])).certificate.objective.value
    rows: Any = plan.certificate.next_best
    assert {row["plan"]: row["objective"] for row in rows}["the same replicas to the end"] == pytest.approx(without)


def test_a_change_that_takes_long_is_not_made(tmp_path: Path) -> None:
    slow = solve(rl_written.written(PROBLEM, tmp_path, late_change="300s"))
    assert RlDecision.model_validate(slow.decision).late_rollout is None


@pytest.mark.parametrize(("field", "by"), [("threshold", 0.01), ("changed_s", 1.0), ("generated_s", -1.0)])
def test_a_change_of_replicas_altered_by_hand_fails_its_check(plan: Envelope, field: str, by: float) -> None:
    forged = plan.model_dump(mode="json", by_alias=True)
    forged["decision"]["late_rollout"][field] += by
    assert failed(forged) & {"rl.late_rollout", "certificate.objective"}


def test_launchers_refuse_it_and_over_sampling_does_not_go_with_it(plan: Envelope, tmp_path: Path) -> None:
    with pytest.raises(PlannerError) as caught:
        emit(plan, RlDecision.model_validate(plan.decision), "verl")
    assert "late_thresholds" in caught.value.hint
    with pytest.raises(PlannerError, match="over-sampling"):
        solve(rl_written.written(PROBLEM, tmp_path, over_sampling=1.5))
