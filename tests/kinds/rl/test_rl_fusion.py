"""Scoring fused with generation as a decision of the kind: chosen where it pays, replayed by check, refused clearly."""

from pathlib import Path
from typing import Any

import pytest
import rl_written
import yaml
from broken_rl_plans import failed

from planner.api import solve
from planner.emit.registry import emit
from planner.errors import PlannerError
from planner.kinds.rl.decision import RlDecision
from planner.plan.schema import Envelope
from planner.rl.timeline import as_svg

PROBLEM: dict[str, Any] = {
    "kind": "rl",
    "models": {"actor": {"name": "Qwen/Qwen2.5-7B"}},
    "cluster": {"pools": [{"gpu": "h800_sxm", "nodes": 1}]},
    "workloads": [{"input_tokens": 512, "output_tokens": {"mean": 1200, "cv": 1.0}}],
    "objective": {"minimize": "iteration_time"},
    "options": {
        "algorithm": "grpo",
        "reference": "actor",
        "prompts": 32,
        "samples_per_prompt": 8,
        "arrangements": ["colocated"],
        "fusion_thresholds": [0.1, 0.3],
    },
}


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Envelope:
    return solve(rl_written.written(PROBLEM, tmp_path_factory.mktemp("fused")))


def dumped(plan: Envelope) -> dict[str, Any]:
    return plan.model_dump(mode="json", by_alias=True)


def others(plan: Envelope) -> dict[str, Any]:
    """Rows of the certificate by the plan that they are about."""
    rows: Any = plan.certificate.next_best
    return {row["plan"]: row for row in rows}


def test_a_fused_plan_is_certified_and_says_what_it_gains(plan: Envelope) -> None:
    fused = RlDecision.model_validate(plan.decision).fused_scoring
    assert fused is not None
    assert fused.free_s < fused.generated_s < fused.scored_s < fused.unfused_s
    assert fused.samples_left == round(fused.threshold * 256)
    assert plan.certificate.status == "optimal"
    assert not failed(dumped(plan))
    assert others(plan)["scoring after generation"]["loss"] > 0


def test_the_gain_is_that_of_the_same_problem_without_fusion(plan: Envelope, tmp_path: Path) -> None:
    apart = solve(rl_written.written(PROBLEM, tmp_path, fusion_thresholds=[]))
    assert others(plan)["scoring after generation"]["objective"] == pytest.approx(
        apart.certificate.objective.value, rel=1e-3
    )
    assert RlDecision.model_validate(apart.decision).fused_scoring is None


def test_what_is_not_served_scores_on_replicas_that_generation_sets_free(tmp_path: Path) -> None:
    nine = PROBLEM | {"cluster": {"pools": [{"gpu": "h800_sxm", "nodes": 1, "gpus_per_node": 9}]}}
    served = {"reward": "actor", "served": [{"part": "reward", "tp": [1], "servers": [1], "batch_samples": [8]}]}
    called = {"reward_calls": {"by": "sandbox", "time": "1s", "workers": 4}}
    for options, part in ((served, "reward"), (called, "sandbox")):
        other = solve(rl_written.written(nine, tmp_path, **options))
        decision = RlDecision.model_validate(other.decision)
        assert decision.fused_scoring is not None
        assert decision.served_scoring is not None
        assert decision.served_scoring.busy_s[part] > 0
        assert decision.served_scoring.scored_s < (other.certificate.objective.value or 0.0)
        assert not failed(dumped(other))


@pytest.mark.parametrize(("field", "by"), [("kept", 1), ("threshold", -0.01), ("free_s", -1.0), ("scored_s", -0.5)])
def test_a_fusion_that_was_changed_by_hand_fails_its_check(plan: Envelope, field: str, by: float) -> None:
    forged = dumped(plan)
    forged["decision"]["fused_scoring"][field] += by
    assert failed(forged) & {"rl.fused_scoring", "certificate.objective"}


def test_a_plan_that_hides_its_fusion_does_not_reach_its_objective(plan: Envelope) -> None:
    forged = dumped(plan)
    del forged["decision"]["fused_scoring"]
    assert "certificate.objective" in failed(forged)


def test_bars_of_phases_at_the_same_time_do_not_cover_each_other(plan: Envelope) -> None:
    drawing = as_svg(RlDecision.model_validate(plan.decision), 60.0)
    assert 'height="15"' in drawing
    assert 'height="30"' in drawing


def test_launchers_refuse_what_none_of_them_can_run(plan: Envelope) -> None:
    with pytest.raises(PlannerError) as caught:
        emit(plan, RlDecision.model_validate(plan.decision), "verl")
    assert "fusion_thresholds" in caught.value.hint


PPO: dict[str, Any] = {
    **PROBLEM,
    "models": {"actor": {"name": "Qwen/Qwen2.5-7B"}, "critic": {"name": "Qwen/Qwen2.5-7B"}},
    "workloads": [{"model": "actor", "input_tokens": 512, "output_tokens": {"mean": 1000, "cv": 0.6}}],
    "options": {
        "algorithm": "ppo",
        "prompts": 64,
        "minibatches": 2,
        "arrangements": ["colocated"],
        "generation_tp": [2],
        "training_pp": [2],
        "fused_training": True,
    },
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Envelope:
    path = tmp_path_factory.mktemp("ppo") / "problem.yaml"
    path.write_text(yaml.safe_dump(PPO), encoding="utf-8")
    return solve(path)


def test_actor_and_critic_train_at_the_same_time_where_that_is_shorter(trained: Envelope) -> None:
    decision = RlDecision.model_validate(trained.decision)
    fused = decision.fused_training
    assert fused is not None
    assert fused.bound_s <= fused.makespan_s < fused.in_turn_s
    assert not failed(dumped(trained))
    assert others(trained)["actor and critic trained in turn"]["loss"] > 0
    starts = {phase.name: phase.start_s for phase in decision.phases}
    assert starts["train actor"] == starts["train critic"]
    assert (trained.certificate.gap or 0.0) < 0.02


def test_a_schedule_changed_by_hand_fails_its_check(trained: Envelope) -> None:
    forged = dumped(trained)
    forged["decision"]["fused_training"]["makespan_s"] *= 0.99
    assert failed(forged) >= {"rl.fused_training"}
    forged = dumped(trained)
    order = forged["decision"]["fused_training"]["order"]
    order[0] = order[0][::-1]
    assert failed(forged) >= {"certificate.proof"}
    forged = dumped(trained)
    del forged["decision"]["fused_training"]
    assert "certificate.objective" in failed(forged)


def test_a_bound_that_holds_for_training_in_turn_alone_is_none(trained: Envelope) -> None:
    forged = dumped(trained)
    in_turn = others(trained)["actor and critic trained in turn"]["objective"]
    forged["certificate"]["bound"] = in_turn
    assert "certificate.proof" in failed(forged)


@pytest.mark.parametrize(
    ("options", "what", "hint"),
    [
        ({"fused_training": True}, "trains no critic", "use `ppo`"),
        ({"reference": None}, "nothing scores", "name a `reference`"),
        ({"arrangements": ["disaggregated"]}, "all arrangements are disaggregated", "add `colocated`"),
        ({"over_sampling": 1.25}, "over-sampling drops the longest samples", "leave `over_sampling`"),
    ],
)
def test_fusions_that_cannot_be_are_refused(tmp_path: Path, options: dict[str, Any], what: str, hint: str) -> None:
    with pytest.raises(PlannerError) as caught:
        solve(rl_written.written(PROBLEM, tmp_path, **options))
    assert what in caught.value.what
    assert hint in caught.value.hint
