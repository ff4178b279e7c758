"""Proofs of RL plans: derived again without the search, and broken by any change of bound, plan, curves or lengths."""

import copy
from pathlib import Path
from typing import Any

import pytest
from broken_rl_plans import failed

from planner.api import solve
from planner.check import check_plan
from planner.kinds.rl.decision import RlDecision
from planner.kinds.rl.drawn import draw_batches
from planner.kinds.rl.options import RlOptions
from planner.kinds.rl.plan.certificate import claim
from planner.plan.schema import Envelope
from planner.problem.schema import Problem
from planner.rl.record import curves_record, read_curves_record

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture(scope="module", params=["iteration_time", "tokens_per_usd"])
def plan(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    text = (EXAMPLES / "rl-grpo-7b.yaml").read_text(encoding="utf-8")
    if request.param == "tokens_per_usd":
        text = text.replace("minimize: iteration_time", "maximize: tokens_per_usd")
    path = tmp_path_factory.mktemp("rl") / "problem.yaml"
    path.write_text(text, encoding="utf-8")
    return solve(path).model_dump(mode="json", by_alias=True)


def test_the_bound_is_derived_again_and_nothing_is_left_unjudged(plan: dict[str, Any]) -> None:
    envelope = Envelope.model_validate(plan)
    findings = [
        finding
        for finding in check_plan(envelope, RlDecision.model_validate(envelope.decision), proof=True)
        if finding.rule == "certificate.proof"
    ]
    assert {(finding.ok, finding.skipped) for finding in findings} == {(True, False)}
    assert "derived again" in findings[-1].what


def better(plan: dict[str, Any], share: float) -> float:
    """The bound, better than it is by a share."""
    bound = float(plan["certificate"]["bound"])
    return bound * (1 + share if plan["certificate"]["objective"]["sense"] == "minimize" else 1 - share)


def test_a_bound_that_a_plan_of_the_space_beats_is_found(plan: dict[str, Any]) -> None:
    forged = copy.deepcopy(plan)
    forged["certificate"]["bound"] = better(plan, 1e-6)
    assert failed(forged) >= {"certificate.proof"}
    loose = copy.deepcopy(plan)
    loose["certificate"]["bound"] = better(plan, -0.01)
    value = loose["certificate"]["objective"]["value"]
    loose["certificate"] |= {"gap": abs(value - loose["certificate"]["bound"]) / value, "status": "feasible"}
    loose["certificate"]["claim"] = claim(loose["certificate"]["objective"]["metric"], closed=False)
    assert not failed(loose)


def test_an_objective_that_the_plan_does_not_reach_is_found(plan: dict[str, Any]) -> None:
    forged = copy.deepcopy(plan)
    forged["certificate"]["objective"]["value"] *= 0.99
    assert failed(forged) >= {"certificate.objective"}


def test_another_number_of_replicas_is_another_plan(plan: dict[str, Any]) -> None:
    forged = copy.deepcopy(plan)
    rollout = next(role for role in forged["decision"]["roles"] if role["function"] == "rollout")
    rollout["replicas"] += 1
    assert failed(forged) >= {"placement.ranks"}


@pytest.mark.parametrize(
    ("table", "column", "factor"), [("decoding", "step_s", 0.25), ("training", "train_tokens_per_s", 4)]
)
def test_faster_curves_than_the_plan_was_made_for_break_the_bound(
    plan: dict[str, Any], table: str, column: str, factor: float
) -> None:
    forged = copy.deepcopy(plan)
    forged_table = forged["certificate"]["proof"]["curves"][table]
    place = forged_table["columns"].index(column)
    for entry in forged_table["rows"]:
        entry[place] *= factor
    assert failed(forged) & {"certificate.proof", "certificate.objective"}


def test_other_lengths_than_the_seed_draws_are_found(plan: dict[str, Any]) -> None:
    forged = copy.deepcopy(plan)
    forged["certificate"]["proof"]["lengths"] = "sha256:" + 64 * "0"
    assert failed(forged) == {"restated.certificate", "certificate.lengths"}


@pytest.mark.parametrize(
    "damage",
    [
        {"curves": None},
        {"curves": {"decoding": {"columns": ["step_s"], "rows": []}}},
        {"curves": {"generation": 3}},
        {"curves": {"switch_s": "soon"}},
        {"curves": {"switch_s": -1.0}},
        {"curves": {"weight_sync_s": [[1, 2]]}},
    ],
)
def test_a_damaged_proof_is_a_finding_and_no_crash(plan: dict[str, Any], damage: dict[str, Any]) -> None:
    forged = copy.deepcopy(plan)
    proof = forged["certificate"]["proof"]
    for key, value in damage.items():
        proof[key] = {**proof[key], **value} if isinstance(value, dict) else value
    assert failed(forged) == {"restated.certificate", "certificate.proof"}


def test_curves_are_the_same_after_being_written_and_read(plan: dict[str, Any]) -> None:
    record = plan["certificate"]["proof"]["curves"]
    assert curves_record(read_curves_record(record)) == record


def test_the_recorded_problem_draws_the_lengths_of_the_solve(plan: dict[str, Any]) -> None:
    problem = Problem.model_validate(plan["inputs"])
    options = RlOptions.model_validate(problem.options)
    batches = draw_batches(problem, options)
    assert len(batches) == options.iterations
    assert all(batch.size == options.prompts * options.samples_per_prompt for batch in batches)
