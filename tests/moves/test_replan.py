"""`planner solve --from PLAN`: little is moved, in an order that replays, within a loss; other clusters are refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from regroup_oracle import broken_by

from planner.api import solve
from planner.cli.main import main
from planner.documents.read import given_document
from planner.errors import PlannerError
from planner.kinds.place.decision import PlaceDecision
from planner.kinds.registry import find_kind
from planner.load.problems import resolve_document
from planner.moves.replan import replanned
from planner.plan.copies import room_bytes
from planner.plan.schema import Decision, Envelope
from planner.problem.resolve import Resolved
from planner.progress import Limits
from planner.solvers.placement.regroup import Regroup

SLO = {"latency": {"p90": "20s"}}
SMALL: dict[str, Any] = {
    "schema": "planner.problem/1",
    "kind": "place",
    "models": {"a": {"name": "Qwen/Qwen3-8B"}, "b": {"name": "Qwen/Qwen3-4B"}, "c": {"name": "Qwen/Qwen3-1.7B"}},
    "cluster": {"pools": [{"gpu": "l40s", "gpus": 4}]},
    "workloads": [
        {"name": name, "model": name, "input_tokens": 500, "output_tokens": 60, "load": {"rate": rate, "arrival_cv": 2}}
        | {"slo": SLO}
        for name, rate in (("a", "3/s"), ("b", "3/s"), ("c", "1/s"))
    ],
    "objective": {"maximize": "attainment"},
    "options": {"simulated_requests": 200, "max_batch": 8, "tp": [1]},
}


def small(**changes: object) -> Resolved:
    return resolve_document(given_document(json.loads(json.dumps(SMALL | changes)), "problem"), Path())


def shuffled(plan: Envelope) -> tuple[Envelope, PlaceDecision]:
    """The same groups on each other's devices, as if the plan that runs had been laid otherwise."""
    decision = PlaceDecision.model_validate(plan.decision)
    first = [block.first_device for block in decision.placement]
    blocks = [
        block.model_copy(update={"first_device": device})
        for block, device in zip(decision.placement, reversed(first), strict=True)
    ]
    decision = decision.model_copy(update={"placement": tuple(blocks)})
    return plan.model_copy(update={"decision": decision.model_dump(mode="json", exclude_none=True)}), decision


@pytest.fixture(scope="module")
def plan() -> Envelope:
    return solve(small())


def test_groups_that_run_on_other_devices_stay_where_they_are(plan: Envelope) -> None:
    before, decision = shuffled(plan)
    replan = replanned(small(), Limits(), before, decision)
    assert replan.steps == ()
    assert replan.moved_bytes == 0.0
    assert replan.plan.certificate.objective.value == plan.certificate.objective.value
    assert replan.all_bytes > 0.0


def test_moves_lead_to_the_plan_without_a_device_too_full_or_a_model_without_a_copy(plan: Envelope) -> None:
    decision = PlaceDecision.model_validate(plan.decision)
    tight = small(options={"simulated_requests": 200, "max_batch": 8, "tp": [2]})
    replan = replanned(tight, Limits(), plan, decision)
    chosen = PlaceDecision.model_validate(replan.plan.decision)
    now, then = (frozenset(find_kind("place").copies(each)) for each in (decision, chosen))
    room = min(room_bytes(decision), room_bytes(chosen))
    assert replan.steps
    assert broken_by(Regroup(room, now, then), replan.steps) is None
    assert replan.moved_bytes >= replan.least_bytes > 0.0
    document = replan.document()
    assert sum(step["bytes"] for step in document["steps"]) == pytest.approx(replan.moved_bytes)
    assert {step["action"] for step in document["steps"]} == {"bring", "drop"}


def test_a_stated_loss_saves_moves_and_is_kept(plan: Envelope) -> None:
    decision = PlaceDecision.model_validate(plan.decision)
    kept = [host for host in decision.hosts if host.group != "group-0" or host.model == "a"]
    shares = {model: sum(host.share for host in kept if host.model == model) for model in "abc"}
    if not all(shares.values()):
        pytest.skip("the plan has a model on its first group alone")
    hosts = tuple(host.model_copy(update={"share": host.share / shares[host.model]}) for host in kept)
    before = decision.model_copy(update={"hosts": hosts})
    exact, close = (replanned(small(), Limits(), plan, before, loss) for loss in (0.0, 0.2))
    best, near = (each.plan.certificate.objective.value or 0.0 for each in (exact, close))
    assert close.moved_bytes <= exact.moved_bytes
    assert near >= 0.8 * best
    assert exact.moved_bytes > 0.0
    assert close.moved_bytes == 0.0


def other(plan: Envelope, decision: Decision, **block: object) -> tuple[Envelope, Decision]:
    first, *others = decision.placement
    placement = (first.model_copy(update=block), *others)
    return plan, decision.model_copy(update={"placement": placement})


def test_plans_of_other_clusters_and_kinds_are_refused_with_what_to_do(plan: Envelope) -> None:
    decision = PlaceDecision.model_validate(plan.decision)
    with pytest.raises(PlannerError, match="runs on pool `hall`, which the problem does not have") as pool:
        replanned(small(), Limits(), *other(plan, decision, pool="hall"))
    assert "l40s" in pool.value.hint
    with pytest.raises(PlannerError, match="runs on device 7 of pool `l40s`, which has 4"):
        replanned(small(), Limits(), *other(plan, decision, first_device=7))
    pools = {"pools": [{"name": "l40s", "gpu": "h100_sxm", "gpus": 4}]}
    with pytest.raises(PlannerError, match="pool `l40s` is of l40s, the problem's of h100_sxm"):
        replanned(small(cluster=pools), Limits(), plan, decision)
    with pytest.raises(PlannerError, match="not of kind `train`"):
        replanned(small(), Limits(), plan.model_copy(update={"kind": "train"}), decision)


def test_the_command_writes_the_moves_and_refuses_a_loss_without_a_plan(
    plan: Envelope, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problem, running = tmp_path / "problem.json", tmp_path / "plan.json"
    problem.write_text(json.dumps(SMALL))
    running.write_text(plan.model_dump_json(by_alias=True, exclude_none=True))
    moves = tmp_path / "moves.json"
    assert main(["solve", str(problem), "--from", str(running), "--moves", str(moves)]) == 0
    assert json.loads(moves.read_text())["steps"] == []
    assert "moves: none" in capsys.readouterr().out
    assert main(["solve", str(problem), "--loss", "1%"]) == 2
    assert "add `--from PLAN`" in capsys.readouterr().err


SERVED: dict[str, Any] = {
    "schema": "planner.problem/1",
    "kind": "serve",
    "models": {"m": {"name": "Qwen/Qwen3-8B"}},
    "cluster": {"pools": [{"gpu": "h100_sxm", "gpus": 4}]},
    "workloads": [{"input_tokens": 512, "output_tokens": 128}],
    "objective": {"maximize": "tokens_per_s_per_gpu"},
    "options": {"modes": ["colocated"], "tp": [1], "pp": [1], "max_batch": [64], "chunk_tokens": [2048]},
}


def served(gpus: int) -> Resolved:
    return resolve_document(given_document({**SERVED, "limits": {"gpus": gpus}}, "problem"), Path())


def test_replicas_of_serving_are_brought_for_more_gpus_and_dropped_for_fewer() -> None:
    few, many = served(1), served(3)
    small_plan, large_plan = solve(few), solve(many)
    decision = find_kind("serve").decision
    small_decision, large_decision = (decision.model_validate(each.decision) for each in (small_plan, large_plan))
    gained = large_decision.roles[0].replicas - small_decision.roles[0].replicas
    assert gained > 0
    grown = replanned(many, Limits(), small_plan, small_decision)
    memory = large_decision.roles[0].memory
    assert memory is not None
    assert [step.brought for step in grown.steps] == [True] * gained
    assert grown.moved_bytes == pytest.approx(gained * memory.weights_bytes)
    assert grown.plan.decision == large_plan.decision
    shrunk = replanned(few, Limits(), large_plan, large_decision)
    assert [step.brought for step in shrunk.steps] == [False] * gained
    assert shrunk.moved_bytes == 0.0
    assert replanned(many, Limits(), large_plan, large_decision).steps == ()
    with pytest.raises(PlannerError, match="a loss is of placements"):
        replanned(many, Limits(), small_plan, small_decision, 0.01)
