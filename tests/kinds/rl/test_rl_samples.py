"""Samples of an RL plan over time: drawn again from its proof, they end when the plan says that generation does."""

import copy
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from planner.api import solve
from planner.cli.main import main
from planner.kinds.rl.decision import RlDecision
from planner.kinds.rl.timeline import samples, spans
from planner.plan.store import plan_json
from planner.report.documents import report
from planner.rl.sample_spans import CHANGED

CURVE = {"pool": "a", "token_s": 1e-7, "prefill_tokens_per_s": 1e5, "max_running": 64, "kv_tokens": 400_000}
TRAINED = {"pool": "a", "tp": 1, "micro_tokens": 8192}
PROBLEM: dict[str, Any] = {
    "kind": "rl",
    "models": {"policy": {"name": "Qwen/Qwen2.5-7B"}},
    "cluster": {"pools": [{"gpu": "h800_sxm", "name": "a", "nodes": 1}]},
    "workloads": [{"input_tokens": 200, "output_tokens": {"mean": 2000, "cv": 1.5}}],
    "objective": {"minimize": "iteration_time"},
    "options": {
        "algorithm": "grpo",
        "prompts": 16,
        "samples_per_prompt": 8,
        "iterations": 1,
        "arrangements": ["colocated"],
        "costs": {
            "generation": [
                {**CURVE, "tp": 1, "step_s": 0.02, "sequence_s": 2e-4},
                {**CURVE, "tp": 8, "step_s": 0.006, "sequence_s": 4e-4},
            ],
            "training": [
                {**TRAINED, "train_tokens_per_s": 900, "forward_tokens_per_s": 3000, "score_tokens_per_s": 6000}
            ],
        },
    },
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "cut off": {"over_sampling": 1.5},
    "late": {"late_thresholds": [0.05, 0.2], "late_change": "4s"},
    "fused": {"fusion_thresholds": [0.1, 0.3], "reference": "policy"},
    "tools": {"tools": {"calls": 2, "wait": "3s", "observation_tokens": 100}},
}


@pytest.mark.parametrize("case", OPTIONS)
def test_the_last_sample_ends_when_the_plan_says_that_generation_does(case: str, tmp_path: Path) -> None:
    document = copy.deepcopy(PROBLEM)
    document["options"] |= OPTIONS[case]
    (tmp_path / "problem.json").write_text(json.dumps(document), encoding="utf-8")
    plan = solve(tmp_path / "problem.json")
    decision = RlDecision.model_validate(plan.decision)
    drawn = samples(plan, decision)
    changed = decision.late_rollout or decision.fused_scoring
    predicted = {row.metric: row.value for row in plan.predictions}
    assert max(span.end_s for span in drawn) == pytest.approx(
        changed.generated_s if changed is not None else predicted["generation_s"]
    )
    assert any(span.replica == CHANGED for span in drawn) == (case in ("late", "fused"))
    assert all(span.finished for span in drawn) == (case in ("plain", "tools"))
    assert any(span.turn for span in drawn) == (case == "tools")
    traced = [span for span in spans(plan, decision) if span.category == "sample"]
    assert len(traced) == len(drawn)
    by_lane: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for span in traced:
        by_lane.setdefault((span.process, span.lane), []).append((span.start_s, span.start_s + span.duration_s))
    for of in by_lane.values():
        ordered = sorted(of)
        assert all(end <= start + 1e-6 for (_, end), (start, _) in pairwise(ordered))
    if case == "plain":
        (tmp_path / "plan.json").write_text(plan_json(plan), encoding="utf-8")
        assert "the last after" in report(str(tmp_path / "plan.json"))
        assert main(["show", str(tmp_path / "plan.json"), "--perfetto", str(tmp_path / "trace.json")]) == 0
        assert "sample 127" in (tmp_path / "trace.json").read_text()
