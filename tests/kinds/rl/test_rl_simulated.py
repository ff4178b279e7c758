"""Rollouts in the engines' simulator, beside what they are priced at: plain, in flight, with turns, refused ones."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from broken_rl_plans import failed

from planner.api import solve
from planner.errors import PlannerError
from planner.explain.post_training import post_training_facts
from planner.kinds.rl import fresh_streams
from planner.kinds.rl.decision import LateRollout, RlDecision
from planner.kinds.rl.fresh_streams import TOLERANCE, judged
from planner.kinds.rl.simulated.scaled import AGREED
from planner.plan.schema import Envelope
from planner.problem.recorded import AtHand
from planner.rl.coupled.referee import coupled_iteration_s

PROBLEM: dict[str, Any] = {
    "kind": "rl",
    "models": {"actor": {"name": "Qwen/Qwen2.5-7B"}},
    "cluster": {"pools": [{"gpu": "h800_sxm", "nodes": 1, "name": "a"}]},
    "workloads": [{"input_tokens": 256, "output_tokens": {"mean": 400, "cv": 1.0}}],
    "objective": {"minimize": "iteration_time"},
    "options": {
        "algorithm": "grpo",
        "prompts": 16,
        "samples_per_prompt": 8,
        "generation_tp": [1],
        "training_tp": [4],
        "training_pp": [1],
        "arrangements": ["colocated"],
    },
}
APART = {"arrangements": ["disaggregated"], "synchrony": ["asynchronous"], "max_staleness": 1}
CARRIED = {"over_sampling": 1.25, "partial_rollouts": True, "max_staleness": 3}
CURVE = {"pool": "a", "tp": 1, "step_s": 0.02, "sequence_s": 4e-4, "token_s": 1e-7, "prefill_tokens_per_s": 2e4}


def planned(folder: Path, **options: Any) -> Envelope:  # noqa: ANN401
    document = copy.deepcopy(PROBLEM)
    document["options"] |= options
    path = folder / "problem.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return solve(path)


def simulated(plan: Envelope) -> tuple[bool, dict[str, Any]]:
    (finding, *_), document = judged(plan, RlDecision.model_validate(plan.decision), AtHand())
    return finding.ok, document


def ratio(document: dict[str, Any]) -> float:
    return float(document["generation_s"]["simulated"] / document["generation_s"]["priced"])


@pytest.mark.parametrize(
    "options",
    [
        {},
        APART,
        {**APART, "in_flight_updates": True},
        {"tools": {"calls": 2, "wait": "1s", "observation_tokens": 50}},
        CARRIED,
        {**CARRIED, "tools": {"calls": 2, "wait": "1s", "observation_tokens": 50}},
    ],
    ids=["colocated", "ahead", "in flight", "tools", "carried over", "tools, carried over"],
)
def test_engines_generate_about_as_fast_as_rollouts_are_priced(tmp_path: Path, options: dict[str, Any]) -> None:
    plan = planned(tmp_path, **options)
    ok, document = simulated(plan)
    assert ok
    assert abs(ratio(document) - 1.0) <= TOLERANCE
    stated = next(p.value for p in plan.predictions if p.metric == "iteration_time_s")
    assert document["iteration_s"]["priced"] == pytest.approx(stated)


@pytest.mark.parametrize(("longer", "ok"), [(1.0, True), (1.2, False)])
def test_plans_whose_generators_and_trainer_take_longer_together_than_priced_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, longer: float, ok: bool
) -> None:
    monkeypatch.setattr(fresh_streams, "coupled_iteration_s", lambda *of: longer * coupled_iteration_s(*of))
    plan = planned(tmp_path, **APART)
    (_, finding), document = judged(plan, RlDecision.model_validate(plan.decision), AtHand())
    assert (finding.rule, finding.ok) == ("simulate.coupled", ok)
    together = document["coupled_iteration_s"]
    assert together["simulated"] == pytest.approx(longer * together["priced"], rel=0.02)


def test_plans_that_are_not_simulated_together_say_why(tmp_path: Path) -> None:
    plan = planned(tmp_path, **APART, over_sampling=1.25)
    (_, finding), document = judged(plan, RlDecision.model_validate(plan.decision), AtHand())
    assert finding.skipped
    assert "part is trained on" in finding.what
    assert "coupled_iteration_s" not in document


def test_replicas_of_a_measured_curve_are_simulated_with_it(tmp_path: Path) -> None:
    measured = {"generation": [{**CURVE, "max_running": 64, "kv_tokens": 400_000}]}
    ok, document = simulated(planned(tmp_path, costs=measured, samples_per_prompt=1, prompts=128))
    assert ok
    assert ratio(document) == pytest.approx(1.0, abs=0.03)


def test_a_rollout_that_engines_take_longer_for_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # few slots a replica and one queue, which engines that are sent every sample at once do not have
    monkeypatch.setattr(fresh_streams, "TOLERANCE", 0.0)
    measured = {"generation": [{**CURVE, "max_running": 4, "kv_tokens": 40_000}]}
    ok, document = simulated(planned(tmp_path, costs=measured, prompts=8))
    assert ratio(document) > 1.0
    assert not ok


def test_what_engines_are_not_simulated_with_is_named(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    late = LateRollout(threshold=0.2, samples_left=2, changed_s=1.0, generated_s=2.0, unchanged_s=3.0)
    decision = RlDecision.model_validate(plan.decision).model_copy(update={"late_rollout": late})
    with pytest.raises(PlannerError, match="replicas that end a rollout"):
        judged(plan, decision, AtHand())


@pytest.fixture(scope="module")
def by_engines(tmp_path_factory: pytest.TempPathFactory) -> Envelope:
    return planned(tmp_path_factory.mktemp("by_engines"), simulated_rollouts=True, generation_tp=[1, 2])


def test_a_plan_may_be_priced_by_what_engines_take(by_engines: Envelope) -> None:
    decision = RlDecision.model_validate(by_engines.decision)
    scales = decision.rollout_scales
    assert scales
    assert all(scale > 0 for scale in scales.values())
    ok, document = simulated(by_engines)
    assert ok
    assert ratio(document) == pytest.approx(1.0, abs=AGREED)
    assert by_engines.certificate.status == "optimal"
    assert not failed(by_engines.model_dump(mode="json", by_alias=True))
    assert any("fitted curve" in fact.what for fact in post_training_facts(by_engines, decision))


def test_another_scale_is_another_price(by_engines: Envelope) -> None:
    forged = by_engines.model_dump(mode="json", by_alias=True)
    forged["decision"]["rollout_scales"] = dict.fromkeys(forged["decision"]["rollout_scales"], 0.5)
    assert any(rule.startswith("restated") for rule in failed(forged))


@pytest.mark.parametrize(
    "options",
    [
        {"late_thresholds": [0.2]},
        {"fusion_thresholds": [0.2], "reference": "actor"},
    ],
)
def test_what_cannot_be_priced_by_engines_is_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(PlannerError) as caught:
        planned(tmp_path, simulated_rollouts=True, **options)
    assert "`simulated_rollouts`" in caught.value.hint
