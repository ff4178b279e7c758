"""Plans of at most so many instance types: `options.max_shapes` in the search, its proof, checks and explanations."""

from typing import Any

import pytest
from serve_problems import broken_rules, objective_of, small
from static_level import solve

from planner.check import check_plan
from planner.errors import Infeasible, PlannerError
from planner.explain import explain_plan
from planner.kinds.serve.options import ServeDecision
from planner.plan.findings import passed
from planner.plan.schema import Envelope
from planner.verify import REFUSED, judge

MIXED = {
    "cluster.pools.0.gpus": 5,
    "options.modes": ["colocated", "disaggregated"],
    "workloads.0.input_tokens": 2000,
    "workloads.0.output_tokens": 100,
}
"""Whose best plan has a colocated instance beside prefill and decode."""


def plan_of(most: int | None, **edits: object) -> tuple[Envelope, ServeDecision]:
    limit = {} if most is None else {"options.max_shapes": most}
    plan = solve(small({**MIXED, **limit, **{key.replace("__", "."): value for key, value in edits.items()}}))
    return plan, ServeDecision.model_validate(plan.decision)


@pytest.fixture(scope="module")
def two() -> tuple[Envelope, ServeDecision]:
    return plan_of(2)


def test_a_plan_of_fewer_types_is_worse_proven_and_passes_its_check(two: tuple[Envelope, ServeDecision]) -> None:
    plan, decision = two
    free, unlimited = plan_of(None)
    assert len(unlimited.roles) > len(decision.roles) == 2
    assert plan.certificate.status == "optimal"
    assert objective_of(plan) < objective_of(free)
    assert passed(check_plan(plan, decision))
    assert not [line for line in judge(plan.model_dump(mode="json", by_alias=True)) if line.verdict == REFUSED]


def test_as_many_types_as_the_best_plan_has_change_nothing() -> None:
    free, unlimited = plan_of(None)
    plan, decision = plan_of(len(unlimited.roles))
    assert objective_of(plan) == pytest.approx(objective_of(free))
    assert len(decision.roles) <= len(unlimited.roles)


def test_a_plan_of_more_types_than_the_problem_allows_is_named() -> None:
    free, _ = plan_of(None)
    options: Any = free.inputs["options"]
    inputs = {**free.inputs, "options": {**options, "max_shapes": 2}}
    altered = free.model_copy(update={"inputs": inputs})
    (broken,) = (finding for finding in broken_rules(altered) if finding.rule == "certificate.cluster")
    assert broken.what == "the proof is about other limits"


def test_the_cap_is_said_to_be_used_up(two: tuple[Envelope, ServeDecision]) -> None:
    plan, decision = two
    facts = [fact.what for fact in explain_plan(plan, decision).facts]
    assert "the cap of 2 instance types: used up" in facts


def test_too_few_types_for_prefill_and_decode_are_a_conflict_with_its_remedy() -> None:
    with pytest.raises(Infeasible) as error:
        plan_of(1, options__modes=["disaggregated"])
    assert error.value.conflict == [{"limit": "max_shapes = 1", "nearest": "max_shapes 2"}]


@pytest.mark.parametrize(
    ("edits", "what"),
    [
        ({"options.max_shapes": 0}, "max_shapes"),
        ({"options.max_shapes": 1, "options.judged_by": "simulation"}, "placements of any number of shapes"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(edits: dict[str, object], what: str) -> None:
    with pytest.raises(PlannerError, match=what):
        solve(small(edits))
