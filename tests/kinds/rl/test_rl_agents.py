"""Samples that call tools: who goes first and who moves is a decision of the kind, replayed by check."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from broken_rl_plans import failed

from planner.api import solve
from planner.emit.registry import emit
from planner.errors import PlannerError
from planner.kinds.rl.decision import RlDecision
from planner.plan.schema import Envelope

CURVE = {"pool": "a", "token_s": 1e-6, "prefill_tokens_per_s": 2e4, "max_running": 4, "kv_tokens": 60_000}
PROBLEM: dict[str, Any] = {
    "kind": "rl",
    "models": {"policy": {"name": "Qwen/Qwen2.5-7B"}},
    "cluster": {"pools": [{"gpu": "h800_sxm", "name": "a", "nodes": 1}]},
    "workloads": [{"input_tokens": 200, "output_tokens": {"mean": 1500, "cv": 1.5}}],
    "objective": {"minimize": "iteration_time"},
    "options": {
        "algorithm": "grpo",
        "prompts": 8,
        "samples_per_prompt": 4,
        "arrangements": ["colocated"],
        "length_error": 0.2,
        "tools": {
            "calls": 4,
            "wait": "3s",
            "observation_tokens": 100,
            "priorities": ["fifo", "longest_first"],
            "move_thresholds": [1.0, 1.3],
        },
        "costs": {
            "generation": [{**CURVE, "tp": 2, "step_s": 0.01, "sequence_s": 4e-3}],
            "training": [
                {"pool": "a", "tp": 1, "train_tokens_per_s": 900, "forward_tokens_per_s": 3000, "micro_tokens": 8192}
            ],
        },
    },
}


def written(folder: Path, **tools: Any) -> Path:  # noqa: ANN401
    document = copy.deepcopy(PROBLEM)
    document["options"]["tools"] |= tools
    path = folder / "problem.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Envelope:
    return solve(written(tmp_path_factory.mktemp("agents")))


def worth(plan: Envelope) -> float:
    assert plan.certificate.objective.value is not None
    return plan.certificate.objective.value


def test_the_best_policy_is_no_worse_than_any_of_them_alone(plan: Envelope, tmp_path: Path) -> None:
    alone = [
        worth(solve(written(tmp_path, priorities=[priority], move_thresholds=thresholds)))
        for priority in ("fifo", "longest_first")
        for thresholds in ([], [1.0], [1.3])
    ]
    assert worth(plan) == pytest.approx(min(alone))
    assert worth(plan) < alone[0]
    assert not failed(plan.model_dump(mode="json", by_alias=True))


def test_another_policy_is_another_plan(plan: Envelope) -> None:
    decision = RlDecision.model_validate(plan.decision)
    assert decision.priority == "longest_first" or decision.move_threshold is not None
    forged = plan.model_dump(mode="json", by_alias=True)
    forged["decision"]["priority"] = "fifo"
    forged["decision"].pop("move_threshold", None)
    assert "certificate.objective" in failed(forged)
    forged["decision"]["move_threshold"] = 7.0
    assert "certificate.objective" in failed(forged)


def test_launchers_refuse_it_and_fusion_does_not_go_with_it(plan: Envelope, tmp_path: Path) -> None:
    with pytest.raises(PlannerError) as caught:
        emit(plan, RlDecision.model_validate(plan.decision), "verl")
    assert "move_thresholds" in caught.value.hint
    document = json.loads(written(tmp_path).read_text(encoding="utf-8"))
    document["options"]["late_thresholds"] = [0.1]
    path = tmp_path / "late.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(PlannerError, match="neither carried over nor fused"):
        solve(path)
