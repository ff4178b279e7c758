"""`options.floor` of `kind: place`: GPUs in use, copies on racks of their own, models apart, and their check."""

import json
from pathlib import Path
from typing import Any

import pytest

from planner.api import solve
from planner.check import check_plan
from planner.documents.read import given_document
from planner.errors import Infeasible, PlannerError
from planner.kinds.place.decision import PlaceDecision
from planner.load.problems import resolve_document
from planner.plan.findings import FAILED
from planner.plan.placement import devices
from planner.plan.schema import Envelope
from planner.problem.recorded import AtHand
from planner.problem.resolve import Resolved

MODELS = ("a", "b", "c")
SMALL: dict[str, Any] = {
    "schema": "planner.problem/1",
    "kind": "place",
    "models": {name: {"name": "Qwen/Qwen3-0.6B"} for name in MODELS},
    "cluster": {"pools": [{"gpu": "h100_sxm", "nodes": 4, "gpus_per_node": 4}]},
    "workloads": [
        {
            **{"name": name, "model": name, "input_tokens": 256, "output_tokens": 1},
            **{"load": {"rate": "20/s", "arrival_cv": 2}, "slo": {"latency": {"p50": "200ms"}}},
        }
        for name in MODELS
    ],
    "objective": {"maximize": "attainment"},
    "options": {"batching": False, "min_replicas": 2, "simulated_requests": 200, "tp": [1, 2], "pp": [1]},
}


def small(floor: dict[str, Any], **options: object) -> Resolved:
    data = json.loads(json.dumps(SMALL))
    data["options"] |= {"floor": floor, **options}
    return resolve_document(given_document(data, "problem"), Path())


def failed(plan: Envelope, decision: PlaceDecision) -> set[str]:
    return {each.rule for each in check_plan(plan, decision, hand=AtHand()) if each.verdict == FAILED}


def lives(decision: PlaceDecision) -> dict[str, set[int]]:
    """The devices of every model's groups."""
    places = {block.role: set(devices(block)) for block in decision.placement}
    return {m: set().union(*(places[host.group] for host in decision.hosts if host.model == m)) for m in MODELS}


TAKEN = {"0": [0, 1, 2], "1": [1, 2], "3": [0, 1, 2, 3]}


def test_groups_stand_on_free_gpus_with_copies_on_racks_of_their_own_and_models_apart() -> None:
    floor = {"taken": TAKEN, "racks": [2, 2], "apart": "rack", "never_together": [["a", "b"]]}
    plan = solve(small(floor))
    decision = PlaceDecision.model_validate(plan.decision)
    used = [device for block in decision.placement for device in devices(block)]
    free = {3, 4, 7, 8, 9, 10, 11}
    assert len(set(used)) == len(used)
    assert set(used) <= free
    for place in lives(decision).values():
        assert {device // 8 for device in place} == {0, 1}
    for role in decision.roles:
        held = {host.model for host in decision.hosts if host.group == role.name}
        assert not {"a", "b"} <= held
    assert failed(plan, decision) == set()


def test_copies_on_one_rack_and_groups_on_taken_gpus_are_told() -> None:
    plan = solve(small({"taken": TAKEN, "racks": [2, 2], "apart": "rack"}))
    decision = PlaceDecision.model_validate(plan.decision)
    block = next(block for block in decision.placement if block.first_device in (3, 4, 7))
    others = tuple(each for each in decision.placement if each is not block)
    moved = decision.model_copy(update={"placement": (*others, block.model_copy(update={"first_device": 0}))})
    assert "restated.plan" in failed(plan, moved)


def test_nodes_that_nobody_uses_stay_whole_as_far_as_others_have_room() -> None:
    plan = solve(small({"taken": {"0": [0, 1], "2": [0]}}, min_replicas=1))
    broken = {each.metric: each.value for each in plan.predictions}["nodes_broken"]
    few = json.loads(json.dumps(SMALL))
    few["objective"] = {"minimize": "gpus"}
    few["options"] |= {"floor": {"taken": {"0": [0, 1], "2": [0]}}, "min_replicas": 1}
    fewest = solve(resolve_document(given_document(few, "problem"), Path()))
    assert broken == 2.0  # all GPUs are used
    assert {each.metric: each.value for each in fewest.predictions}["nodes_broken"] == 0.0


@pytest.mark.parametrize(
    ("floor", "options", "told"),
    [
        ({"taken": {"9": [0]}}, {}, "no node in service is `9`"),
        ({"taken": {"0": [4]}}, {}, "GPU 4 of a node of 4"),
        ({"racks": [3]}, {}, "1 racks hold 3 nodes"),
        ({"apart": "node"}, {"min_replicas": 1}, "one copy of a model is on one node"),
        ({"apart": "rack"}, {}, "2 copies apart, on 1 rack"),
        ({"never_together": [["a", "z"]]}, {}, "no model is called `z`"),
        ({"taken": {str(node): [0, 1, 2, 3] for node in range(4)}}, {}, "all GPUs are taken"),
    ],
)
def test_floors_that_cannot_be_are_refused_with_what_to_do(
    floor: dict[str, Any], options: dict[str, Any], told: str
) -> None:
    with pytest.raises(PlannerError, match=told) as raised:
        solve(small(floor, **options))
    assert raised.value.hint


def test_models_that_must_be_apart_on_one_gpu_are_infeasible() -> None:
    alone = {"taken": {"0": [0, 1, 2], **{str(node): [0, 1, 2, 3] for node in range(1, 4)}}}
    with pytest.raises(Infeasible):
        solve(small(alone | {"never_together": [["a", "b"]]}, min_replicas=1))
