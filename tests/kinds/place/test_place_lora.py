"""`options.lora` of `kind: place`: hosts against all ways to host, fewest GPUs, checks, emission and bad problems."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from broken_plans import failing_with_proof

from planner.api import solve
from planner.cli.render.plan import render_plan
from planner.documents.read import given_document
from planner.emit.registry import emit
from planner.errors import Infeasible, PlannerError
from planner.kinds.place.decision import PlaceDecision
from planner.kinds.place.lora.setting import read_setting
from planner.load.problems import load_problem, resolve_document
from planner.plan.placement import devices
from planner.problem.resolve import Resolved

LORA = Path(__file__).parent.parent.parent.parent / "examples" / "place-lora.yaml"
SMALL: dict[str, Any] = {
    "schema": "planner.problem/1",
    "kind": "place",
    "models": {"m": {"name": "Qwen/Qwen3-4B"}},
    "cluster": {"pools": [{"gpu": "l40s", "gpus": 2}]},
    "workloads": [{"input_tokens": 500, "output_tokens": 100}],
    "objective": {"maximize": "tokens_per_s_per_gpu"},
    "options": {
        "tp": [1],
        "lora": {
            "adapters": {"a": {"rate": "5/s"}, "b": {"rate": "3/s"}, "c": {"rate": "2/s"}, "d": {"rate": "1/s"}},
            "slots": 2,
            "slowdown": 1.25,
        },
    },
}


def small(lora: dict[str, Any] | None = None, **changes: object) -> Resolved:
    data = json.loads(json.dumps(SMALL | changes))
    data["options"]["lora"] |= lora or {}
    return resolve_document(given_document(data, "problem"), Path())


def least_busy(rates: list[float], request_s: float, slots: int) -> float:
    """Over all pairs of sets of adapters on two engines; of those on both any part may go to either."""
    sets = [s for n in range(slots + 1) for s in itertools.combinations(range(len(rates)), n)]
    best = float("inf")
    for first, second in itertools.product(sets, repeat=2):
        if set(first) | set(second) != set(range(len(rates))):
            continue
        own = [sum(rates[k] for k in engine if k not in other) for engine, other in ((first, second), (second, first))]
        best = min(best, max(*own, sum(rates) / 2))
    return best * request_s


@pytest.mark.parametrize("slots", [2, 3, 4])
def test_the_busiest_engine_works_as_little_as_under_the_best_of_all_ways_to_host(slots: int) -> None:
    resolved = small({"slots": slots})
    setting = read_setting(resolved)
    plan = solve(resolved)
    busiest = max(each.value for each in plan.predictions if each.metric == "busy" and each.value is not None)
    least = least_busy(setting.rates_per_s, setting.shapes[0].unmerged_s, slots)
    assert busiest == pytest.approx(least, rel=1e-3)
    bound, value = plan.certificate.bound, plan.certificate.objective.value
    assert bound is not None
    assert value is not None
    assert value <= bound * (1 + 1e-9)
    assert value == pytest.approx(bound, rel=2e-3)


def test_engines_merged_with_an_adapter_serve_it_alone_and_let_more_through() -> None:
    apart, merged = solve(load_problem(LORA, overrides=["options.lora.merged=false"])), solve(load_problem(LORA))
    decision = PlaceDecision.model_validate(merged.decision)
    alone = {host.engine for host in decision.adapters if host.merged}
    assert alone
    assert all(sum(host.engine == engine for host in decision.adapters) == 1 for engine in alone)
    assert (merged.certificate.objective.value or 0.0) > (apart.certificate.objective.value or 0.0)
    assert failing_with_proof(merged, decision) == set()


def test_hosts_that_break_their_engines_are_told_apart() -> None:
    plan = solve(small({"slots": 3}))
    decision = PlaceDecision.model_validate(plan.decision)
    assert failing_with_proof(plan, decision) == set()
    first, *others = sorted(decision.adapters, key=lambda host: host.share)
    assert first.share < 1.0  # of an adapter on two engines
    assert "place.shares" in failing_with_proof(plan, decision.model_copy(update={"adapters": tuple(others)}))
    strange = first.model_copy(update={"engine": "engine-9"})
    assert "place.hosts" in failing_with_proof(plan, decision.model_copy(update={"adapters": (strange, *others)}))
    crowded = [first.model_copy(update={"engine": "engine-0", "adapter": name, "share": 1.0}) for name in "abcd"]
    assert "place.slots" in failing_with_proof(plan, decision.model_copy(update={"adapters": tuple(crowded)}))
    merged = [host.model_copy(update={"merged": True}) for host in decision.adapters]
    assert "place.merged" in failing_with_proof(plan, decision.model_copy(update={"adapters": tuple(merged)}))


def test_the_fewest_engines_are_as_idle_as_asked_and_one_less_is_not() -> None:
    resolved = small(
        {"slots": 4, "max_busy": 0.3}, objective={"minimize": "gpus"}, cluster={"pools": [{"gpu": "l40s", "gpus": 8}]}
    )
    setting = read_setting(resolved)
    plan = solve(resolved)
    work = sum(setting.rates_per_s) * setting.shapes[0].unmerged_s
    gpus = plan.certificate.objective.value
    assert gpus is not None
    assert work / gpus <= 0.3 * (1 + 1e-6) < work / (gpus - 1)
    assert plan.certificate.bound == gpus


def test_engines_are_emitted_with_their_adapters_and_routes_share_each_one() -> None:
    plan = solve(load_problem(LORA, overrides=["options.lora.merged=false"]))
    decision = PlaceDecision.model_validate(plan.decision)
    files = emit(plan, decision, "vllm-groups")
    lines = re.findall(r"--lora-modules (.*) &", files["launch-node-00.sh"])
    loaded = [[json.loads(each) for each in re.findall(r"'([^']*)'", line)] for line in lines]
    hosts = sorted((host.adapter, f"./adapters/{host.adapter}") for host in decision.adapters)
    assert sorted((each["name"], each["path"]) for engine in loaded for each in engine) == hosts
    routes = json.loads(files["routes.json"])["adapters"]
    assert all(sum(row["share"] for row in rows) == pytest.approx(1.0) for rows in routes.values())
    assert set(files) == {"launch-node-00.sh", "routes.json"}
    merged = solve(load_problem(LORA))
    with pytest.raises(PlannerError, match="runs merged"):
        emit(merged, PlaceDecision.model_validate(merged.decision), "vllm-groups")


@pytest.mark.parametrize(
    ("lora", "changes", "told"),
    [
        ({"slots": 4000}, {}, "no engine holds its model, 4000 adapters"),
        ({"max_busy": 0.5}, {}, "max_busy` has no effect where tokens are to be many"),
        ({}, {"objective": {"minimize": "cost"}}, "for tokens a second, or on few GPUs"),
        ({}, {"models": {"m": {"name": "Qwen/Qwen3-30B-A3B"}}}, "no engine|adapters of the experts"),
        ({}, {"seed": 3}, "whose solver draws nothing"),
    ],
)
def test_problems_that_cannot_be_are_refused_with_what_to_do(
    lora: dict[str, Any], changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(PlannerError, match=told) as raised:
        solve(small(lora, **changes))
    assert raised.value.hint


def test_too_few_slots_and_too_much_load_are_infeasible_with_what_is_missing() -> None:
    with pytest.raises(Infeasible) as slots:
        solve(small({"slots": 1}))
    assert slots.value.conflict[0] == {"limit": "slots = 1", "nearest": "2"}
    busy = {"adapters": {"a": {"rate": "500/s"}}}
    with pytest.raises(Infeasible) as load:
        solve(small(busy, objective={"minimize": "gpus"}))
    assert load.value.proved


def test_work_that_waits_is_told_where_engines_are_asked_for_more_than_they_serve() -> None:
    few = {name: {"rate": "0.1/s"} for name in "abcd"}
    many = {name: {"rate": "90/s"} for name in "abcd"}
    for adapters, over in ((few, False), (many, True)):
        plan = solve(small({"adapters": adapters}))
        value = {each.metric: each.value for each in plan.predictions}
        assert value["load_served"] == pytest.approx(min(1.0, 1.0 / value["busy"]))
        screen = render_plan(plan, PlaceDecision.model_validate(plan.decision))
        assert ("the stated load is more than the engines serve" in screen) == over
        assert any("queues grow" in each for each in plan.assumptions) == over


def test_engines_stand_on_what_others_leave_of_the_floor() -> None:
    pools = {"pools": [{"gpu": "l40s", "nodes": 2, "gpus_per_node": 4}]}
    options = {**SMALL["options"], "tp": [2], "floor": {"taken": {"0": [0, 2, 3], "1": [1]}}}
    plan = solve(small({"slots": 4}, cluster=pools, options=options))
    decision = PlaceDecision.model_validate(plan.decision)
    stands = [tuple(devices(block)) for block in decision.placement]
    assert len(stands) == 1  # of node 1 three GPUs are left, of node 0 one
    assert set(stands[0]) <= {4, 6, 7}
    assert not failing_with_proof(plan, decision)
    with pytest.raises(PlannerError, match=r"floor.apart` has no effect with `lora`"):
        solve(small(options={**options, "floor": {"apart": "node"}, "min_replicas": 2}))
