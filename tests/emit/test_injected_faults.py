"""Faults injected into plans and artifacts are refused by us, before any validator of others sees them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from emit_plans import DEEPSEEK, QWEN, Case, RolePlan
from test_cluster_targets import ENGINES_OF, IMAGES, OPTIONS, built, files_of
from test_emit_with_experts import layout

from planner.check.sound import require_sound
from planner.emit.registry import LayoutPlan, emit
from planner.errors import PlannerError
from planner.importing.audit import blocks
from planner.importing.files import read_files
from planner.load.problems import load_plan
from planner.plan.store import plan_json
from planner.problem.recorded import AtHand

__all__ = ["layout"]
SOUND = Case(
    (RolePlan("prefill", 2, {"tp": 2}), RolePlan("decode", 1, {"tp": 4})),
    {"default": {"name": QWEN}},
)
Edit = Callable[[dict[str, Any]], object]
FAULTS: dict[str, tuple[Edit, str]] = {
    "wrong field": (lambda plan: plan["decision"]["roles"][0].update(replica=2), "replica"),
    "wrong limit": (lambda plan: plan["decision"]["roles"][0]["limits"].update(max_bacth=8), "max_bacth"),
    "wrong format": (lambda plan: plan["inputs"]["models"]["default"].update(kv_cache="int3"), "int3"),
    "over-subscribed node": (lambda plan: plan["decision"]["placement"][1].update(first_device=2), "belongs to"),
    "beyond the cluster": (lambda plan: plan["decision"]["placement"][1].update(first_device=6), "outside"),
    "another engine": (lambda plan: plan["decision"]["roles"][0]["engine"].update(name="trtllm"), "trtllm"),
    "pipelined prefill that decode would pull from": (
        lambda plan: (
            plan["inputs"]["models"]["default"].update(name="Qwen/Qwen3.5-27B"),
            plan["decision"]["roles"][0]["parallelism"].update(pp=2, tp=1),
            plan["decision"]["placement"][0].update(
                axes=[{"name": "replica", "size": 2, "stride": 2}, {"name": "pp", "size": 2, "stride": 1}]
            ),
        ),
        "from a pipeline",
    ),
}


def emitted(path: Path, target: str) -> dict[str, str]:
    """As `planner emit` does."""
    envelope, decision = load_plan(path)
    files = emit(envelope, decision, target, (), OPTIONS.get(target, IMAGES))
    require_sound(envelope, decision, path.parent, AtHand())
    return files


@pytest.mark.parametrize("target", ENGINES_OF)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_plan_is_refused_for_every_target(target: str, fault: str, tmp_path: Path) -> None:
    edit, reason = FAULTS[fault]
    envelope, decision = built(SOUND, "vllm")
    data = json.loads(plan_json(envelope.model_copy(update={"decision": decision.model_dump(mode="json")})))
    data["certificate"]["objective"]["value"] = 1.0
    edit(data)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    with pytest.raises(PlannerError, match=reason):
        emitted(path, target)


@pytest.mark.parametrize("target", ["kubernetes", "lws", "disaggregatedset", "dynamo"])
def test_a_layout_for_other_ranks_is_refused(target: str, layout: Callable[..., LayoutPlan]) -> None:
    roles = (RolePlan("prefill", 1, {"dp": 16, "ep": 16}), RolePlan("decode", 1, {"dp": 32, "ep": 32}))
    plan = built(Case(roles, {"default": {"name": DEEPSEEK}}, 6), "sglang")
    with pytest.raises(PlannerError, match="32"):
        emit(*plan, target, [layout(role="prefill")], OPTIONS.get(target, IMAGES))


@pytest.mark.parametrize(
    ("target", "right", "wrong", "reason"),
    [
        ("kubernetes", "--max-num-seqs", "--max-num-seq", "unknown flag"),
        ("lws", "--max-model-len", "--max-model-lens", "unknown flag"),
        ("kubernetes", "nvidia.com/gpu: '4'", "nvidia.com/gpu: '2'", "needs 4 GPUs"),
    ],
)
def test_a_fault_in_an_artifact_is_told_by_the_audit(
    target: str, right: str, wrong: str, reason: str, tmp_path: Path
) -> None:
    text = files_of(SOUND, target)["plan.yaml"]
    assert right in text
    path = tmp_path / "plan.yaml"
    for content, told in ((text, False), (text.replace(right, wrong), True)):
        path.write_text(content)
        findings = [finding for finding in read_files([str(path)], {}).findings if blocks(finding)]
        assert bool(findings) == told
        assert not told or reason in findings[0]
