"""Updates in flight as an option of the kind: planned, replayed by check, launched, refused where they mean nothing."""

from pathlib import Path
from typing import Any

import pytest
import rl_written
from broken_rl_plans import failed

from planner.api import solve
from planner.emit.registry import emit
from planner.errors import PlannerError
from planner.explain.post_training import post_training_facts
from planner.kinds.rl.decision import RlDecision
from planner.plan.schema import Envelope

PROBLEM: dict[str, Any] = {
    "kind": "rl",
    "models": {"actor": {"name": "Qwen/Qwen2.5-7B"}},
    "cluster": {"pools": [{"gpu": "h800_sxm", "nodes": 2}]},
    "workloads": [{"input_tokens": 512, "output_tokens": {"mean": 1200, "cv": 1.0}}],
    "objective": {"minimize": "iteration_time"},
    "options": {
        "algorithm": "grpo",
        "prompts": 32,
        "samples_per_prompt": 8,
        "arrangements": ["disaggregated"],
        "synchrony": ["asynchronous"],
        "max_staleness": 2,
        "training_pp": [1],
        "in_flight_updates": True,
    },
}


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Envelope:
    return solve(rl_written.written(PROBLEM, tmp_path_factory.mktemp("in_flight")))


def test_a_plan_in_flight_is_certified_and_says_how_its_samples_flow(plan: Envelope, tmp_path: Path) -> None:
    decision = RlDecision.model_validate(plan.decision)
    flow = decision.in_flight_updates
    assert flow is not None
    assert flow.samples == decision.staleness * 256
    assert 0 < flow.period_s < flow.residence_s
    assert plan.certificate.status == "optimal"
    assert not failed(plan.model_dump(mode="json", by_alias=True))
    drained = solve(rl_written.written(PROBLEM, tmp_path, in_flight_updates=False)).certificate.objective.value
    assert drained is not None
    assert (plan.certificate.objective.value or 0.0) <= drained
    assert any("no rollout is ended" in fact.what for fact in post_training_facts(plan, decision))


@pytest.mark.parametrize(("field", "value"), [("samples", 1), ("period_s", 1.0), ("residence_s", 1.0)])
def test_how_samples_flow_is_simulated_again(plan: Envelope, field: str, value: float) -> None:
    forged = plan.model_dump(mode="json", by_alias=True)
    forged["decision"]["in_flight_updates"][field] = value
    assert "rl.in_flight_updates" in failed(forged)


def test_what_was_asked_for_is_what_is_planned(plan: Envelope) -> None:
    forged = plan.model_dump(mode="json", by_alias=True)
    del forged["decision"]["in_flight_updates"]
    assert "rl.in_flight_asked" in failed(forged)


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"max_staleness": 0, "synchrony": ["synchronous"]}, "max_staleness: 1"),
        ({"synchrony": ["stream"]}, "synchrony: [asynchronous]"),
        ({"over_sampling": 1.5}, "no `over_sampling`"),
        ({"length_error": 0.5}, "no `length_error`"),
        ({"tools": {"calls": 2, "wait": "1s"}}, "no `tools`"),
    ],
)
def test_what_does_not_go_with_updates_in_flight_is_refused(tmp_path: Path, options: dict[str, Any], hint: str) -> None:
    with pytest.raises(PlannerError) as caught:
        solve(rl_written.written(PROBLEM, tmp_path, **options))
    assert hint in caught.value.hint


def test_launchers_that_can_are_told_and_others_refuse(plan: Envelope) -> None:
    decision = RlDecision.model_validate(plan.decision)
    assert "in_flight_weight_updates: true" in "".join(emit(plan, decision, "nemo-rl").values())
    assert "async_training.partial_rollout=True" in "".join(emit(plan, decision, "verl").values())
    assert emit(plan, decision, "areal")
    with pytest.raises(PlannerError) as caught:
        emit(plan, decision, "openrlhf")
    assert "`areal`" in caught.value.hint
