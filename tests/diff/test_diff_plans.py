"""Differences between plans of every kind: what is found, what it is called, and what stays."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cli.render.diff import diff_document, render_diff
from planner.diff import PlanDiff, diff_plans
from planner.diff.tree import changes
from planner.errors import PlannerError
from planner.kinds.registry import find_kind, kind_names
from planner.plan.placement import device_runs
from planner.plan.schema import Decision, Envelope

Edited = Callable[..., dict[str, Any]]
KINDS = kind_names()


def loaded(plan: dict[str, Any]) -> tuple[Envelope, Decision]:
    envelope = Envelope.model_validate(plan)
    return envelope, find_kind(envelope.kind).decision.model_validate(envelope.decision)


@pytest.fixture
def compare(edited_plan: Edited) -> Callable[..., PlanDiff]:
    def compared(kind: str, edits: dict[str, Any], other: str = "") -> PlanDiff:
        return diff_plans(loaded(edited_plan(kind)), loaded(edited_plan(other or kind, edits)))

    return compared


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_does_not_differ_from_itself(compare: Callable[..., PlanDiff], kind: str) -> None:
    difference = compare(kind, {})
    assert difference.same
    assert difference.weights.kept == difference.weights.before == difference.weights.after > 0


@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("second", KINDS)
def test_kinds_that_differ_are_named_and_compared_in_what_they_share(
    compare: Callable[..., PlanDiff], first: str, second: str
) -> None:
    difference = compare(first, {}, second)
    assert difference.kinds == (first, second)
    assert difference.same is (first == second)
    roots = {change.path.split(".")[0] for change in difference.decision}
    assert roots <= set(Decision.model_fields)


@pytest.mark.parametrize(
    ("kind", "edit", "value", "path"),
    [
        ("serve", "decision.roles.1.limits.max_batch", 64, "roles.decode.limits.max_batch"),
        ("serve", "decision.roles.0.engine.version", "9.9", "roles.prefill.engine.version"),
        ("train", "decision.micro_batch", 2, "micro_batch"),
        ("train", "decision.overlap", ["p2p"], "overlap"),
        ("experts", "decision.policy", "realtime", "policy"),
        ("rl", "decision.weight_sync.method", "relay", "weight_sync.method"),
        ("place", "decision.hosts.0.max_batch", 8, "hosts.group-0/llama.max_batch"),
    ],
)
def test_one_edit_of_a_decision_is_one_change(
    compare: Callable[..., PlanDiff], kind: str, edit: str, value: object, path: str
) -> None:
    difference = compare(kind, {edit: value})
    assert [change.path for change in difference.decision] == [path]
    assert difference.decision[0].after == value
    assert not difference.figures
    assert not difference.inputs


def test_inputs_and_predictions_that_differ_are_told_apart_from_the_decision(
    compare: Callable[..., PlanDiff], edited_plan: Edited
) -> None:
    before = edited_plan("serve")["predictions"][0]["value"]
    difference = compare("serve", {"inputs.limits.gpus": 12, "predictions.0.value": 2 * before})
    assert not difference.decision
    assert [(change.path, change.before, change.after) for change in difference.inputs] == [("limits.gpus", 16, 12)]
    assert [figure.relative for figure in difference.figures] == [pytest.approx(1.0)]
    assert "digests.problem" in [change.path for change in difference.provenance]


def test_a_renamed_role_is_a_change_of_its_name_and_keeps_its_weights(edited_plan: Edited) -> None:
    plan = edited_plan("serve")
    renamed = edited_plan("serve", {"decision.roles.0.name": "prefill-1", "decision.placement.0.role": "prefill-1"})
    for route in renamed["decision"]["routing"]:
        for end in ("to", "source"):
            if route.get(end) == "prefill":
                route[end] = "prefill-1"
    difference = diff_plans(loaded(plan), loaded(renamed))
    assert [(change.path, change.before, change.after) for change in difference.decision] == [
        ("roles.prefill.name", "prefill", "prefill-1")
    ]
    assert difference.weights.kept == difference.weights.after


def test_devices_that_swap_tensor_parallel_shards_need_new_weights(edited_plan: Edited) -> None:
    plan = edited_plan("serve")
    moved = edited_plan("serve", {"decision.placement.1.first_device": 5})
    difference = diff_plans(loaded(plan), loaded(moved)).weights
    # Two decode groups of four move up by one device: none of the devices they share keeps its shard.
    assert difference.after - difference.kept == 8


def test_a_replica_more_keeps_all_that_were_there(edited_plan: Edited) -> None:
    edits = {"decision.roles.0.replicas": 1, "decision.placement.0.axes": [{"name": "tp", "size": 2, "stride": 1}]}
    fewer = loaded(edited_plan("serve", edits))
    difference = diff_plans(fewer, loaded(edited_plan("serve"))).weights
    assert (difference.kept, difference.after - difference.before) == (difference.before, 2)


@pytest.mark.parametrize(
    "edit", [{"decision.placement.0.axes.0.size": 10**12}, {"decision.placement.0.first_device": 10**12}]
)
def test_a_placement_beyond_any_cluster_is_refused_and_not_expanded(edited_plan: Edited, edit: dict[str, Any]) -> None:
    with pytest.raises(PlannerError, match="are read"):
        diff_plans(loaded(edited_plan("serve")), loaded(edited_plan("serve", edit)))


def test_another_precision_leaves_no_device_its_weights(compare: Callable[..., PlanDiff]) -> None:
    assert compare("serve", {"digests.models.chat": "sha256:" + "0" * 64}).weights.kept == 0


def test_a_model_that_leaves_a_group_is_seen_through_the_list_of_hosts(compare: Callable[..., PlanDiff]) -> None:
    stays = compare("place", {"decision.hosts.1": {"group": "group-1", "model": "llama", "weights_bytes": 1e9}})
    assert stays.weights.after - stays.weights.kept == 4  # group-0 loses a model; group-1 must load one


def test_layers_moved_between_stages_weaken_what_is_said_of_weights(
    compare: Callable[..., PlanDiff], edited_plan: Edited
) -> None:
    layers = edited_plan("train")["decision"]["stage_runs"][0]["num_layers"]
    assert compare("train", {"decision.stage_runs.0.num_layers": layers + 1}).rearranged
    assert not compare("train", {"decision.micro_batch": 2}).rearranged


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab", max_size=2),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", min_size=1, max_size=2), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(JSON, JSON)
def test_changes_back_are_the_changes_turned_round(before: object, after: object) -> None:
    turned = {"+": "-", "-": "+", "~": "~"}
    there = {(turned[c.action], c.path, repr(c.after), repr(c.before)) for c in changes(before, after)}
    assert there == {(c.action, c.path, repr(c.before), repr(c.after)) for c in changes(after, before)}


@settings(deadline=None)
@given(JSON)
def test_nothing_differs_from_itself(value: object) -> None:
    assert list(changes(value, value)) == []


@settings(deadline=None)
@given(st.sets(st.integers(0, 40)))
def test_runs_of_devices_expand_to_the_devices(numbers: set[int]) -> None:
    runs = list(device_runs(sorted(numbers)))
    assert [number for first, last in runs for number in range(first, last + 1)] == sorted(numbers)
    assert all(run[1] + 1 < other[0] for run, other in itertools.pairwise(runs))


def test_many_layers_that_change_alike_are_counted_with_the_one_that_changes_most(
    compare: Callable[..., PlanDiff],
) -> None:
    slots = [[3, 2, 1, 0] if layer == 5 else [0, 1, 3, 2] for layer in range(6)]
    before = {"layouts": [{"layer": layer, "expert_of_slot": [0, 1, 2, 3]} for layer in range(9)]}
    after = {"layouts": [{**row, "expert_of_slot": own} for row, own in zip(before["layouts"], slots, strict=False)]}
    after["layouts"] += before["layouts"][6:]

    def difference(layers: int) -> PlanDiff:
        own = changes(before, {"layouts": [*after["layouts"][:layers], *before["layouts"][layers:]]})
        return replace(compare("experts", {}), decision=tuple(own))

    counted = "~ layouts.*.expert_of_slot  6 of 9, most in 5: 4 of 4 differ; `--verbose` has all"
    assert counted in render_diff(difference(6))
    assert "layouts.*" not in render_diff(difference(3))
    for whole in (render_diff(difference(6), verbose=True), str(diff_document(difference(6)))):
        assert all(f"layouts.{layer}.expert_of_slot" in whole for layer in range(6))
    added = {"layouts": before["layouts"] * 2}
    more = replace(compare("experts", {}), decision=tuple(changes(before, added)))
    assert "+ layouts.*  9 of 18; `--verbose` has all" in render_diff(more)
