"""Partial rollouts and over-sampling as options of the kind: planned, replayed by check, bounded in age, launched."""

from pathlib import Path
from typing import Any

import pytest
import rl_written
from broken_rl_plans import failed

from planner.api import solve
from planner.emit.registry import emit
from planner.errors import Infeasible, PlannerError
from planner.kinds.rl.decision import RlDecision
from planner.plan.schema import Envelope

PROBLEM: dict[str, Any] = {
    "kind": "rl",
    "models": {"actor": {"name": "Qwen/Qwen2.5-7B"}},
    "engine": {"name": "sglang"},
    "cluster": {"pools": [{"gpu": "h800_sxm", "nodes": 1}]},
    "workloads": [{"input_tokens": 512, "output_tokens": {"mean": 1200, "cv": 1.0}}],
    "objective": {"minimize": "iteration_time"},
    "options": {
        "algorithm": "grpo",
        "prompts": 32,
        "samples_per_prompt": 8,
        "arrangements": ["colocated"],
        "over_sampling": 1.25,
        "partial_rollouts": True,
        "max_staleness": 3,
        "iterations": 4,
    },
}


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Envelope:
    return solve(rl_written.written(PROBLEM, tmp_path_factory.mktemp("partial")))


def test_partial_rollouts_are_certified_and_say_what_is_stale(plan: Envelope, tmp_path: Path) -> None:
    carried = RlDecision.model_validate(plan.decision).partial_rollouts
    assert carried is not None
    assert carried.carried == round(256 * 1.25) - 256
    assert 0 < carried.stale_share < 1
    assert 1 <= carried.oldest <= 3
    assert plan.certificate.status == "optimal"
    assert not failed(plan.model_dump(mode="json", by_alias=True))
    whole = solve(
        rl_written.written(PROBLEM, tmp_path, partial_rollouts=False, over_sampling=1.0)
    ).certificate.objective.value
    assert whole is not None
    assert (plan.certificate.objective.value or 0.0) < whole


@pytest.mark.parametrize(("field", "value"), [("carried", 1.0), ("stale_share", 0.0), ("oldest", 0)])
def test_what_is_carried_over_is_simulated_again(plan: Envelope, field: str, value: float) -> None:
    forged = plan.model_dump(mode="json", by_alias=True)
    forged["decision"]["partial_rollouts"][field] = value
    assert "rl.partial_rollouts" in failed(forged)


def test_samples_older_than_allowed_are_no_plan_and_the_age_that_is_needed_is_named(tmp_path: Path) -> None:
    heavy = rl_written.written(PROBLEM, tmp_path, over_sampling=2.0, max_staleness=1, iterations=6)
    with pytest.raises(Infeasible) as caught:
        solve(heavy)
    assert "max_staleness = 1" in caught.value.conflict[0]["limit"]
    needed = int(caught.value.conflict[0]["nearest"].removeprefix("max_staleness "))
    carried = RlDecision.model_validate(
        solve(rl_written.written(PROBLEM, tmp_path, over_sampling=2.0, max_staleness=needed, iterations=6)).decision
    )
    assert carried.partial_rollouts is not None
    assert carried.partial_rollouts.oldest <= needed


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"over_sampling": 1.0}, "over_sampling: 1.25"),
        ({"iterations": 1}, "`iterations: 2`"),
        ({"max_staleness": 0}, "max_staleness: 1"),
        ({"tail_fractions": [0.1]}, "no `tail_fractions`"),
        ({"length_error": 0.5}, "no `length_error`"),
    ],
)
def test_what_does_not_go_with_partial_rollouts_is_refused(tmp_path: Path, options: dict[str, Any], hint: str) -> None:
    with pytest.raises(PlannerError) as caught:
        solve(rl_written.written(PROBLEM, tmp_path, **options))
    assert hint in caught.value.hint


def test_a_launcher_that_can_is_told_and_others_refuse(plan: Envelope) -> None:
    decision = RlDecision.model_validate(plan.decision)
    script = "".join(emit(plan, decision, "slime").values())
    assert "--over-sampling-batch-size 40" in script
    assert "--partial-rollout" in script
    with pytest.raises(PlannerError) as caught:
        emit(plan, decision, "areal")
    assert "slime" in caught.value.hint
