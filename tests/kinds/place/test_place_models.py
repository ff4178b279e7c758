"""`kind: place`: figures of plans against a slow reference, the choice against fillings, and bad problems."""

import itertools
import json
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from turns_simulator import attained, drawn

from planner.api import solve
from planner.check import check_plan
from planner.documents.read import given_document
from planner.emit.serving.shared_groups import as_engines
from planner.errors import Infeasible, PlannerError
from planner.kinds.place import choose
from planner.kinds.place.bounds import can_be_kept, fewest_devices, most_on_time
from planner.kinds.place.choose import claimed_streams
from planner.kinds.place.decision import PlaceDecision
from planner.kinds.place.lost import until_then
from planner.kinds.place.reached import reached
from planner.kinds.place.setting import batch_sizes, read_setting, widest_setting
from planner.load.problems import load_problem, resolve_document
from planner.plan.findings import FAILED
from planner.plan.schema import Envelope
from planner.problem.recorded import AtHand
from planner.problem.resolve import Resolved
from planner.solvers.placement.group_bounds import bound_on_time
from planner.solvers.placement.group_fillings import fill, partitions
from planner.solvers.placement.group_streams import Group, Stream

FOUR = Path(__file__).parent.parent.parent.parent / "examples" / "place-four-models.yaml"


@pytest.fixture(scope="module")
def four() -> tuple[Resolved, Envelope, PlaceDecision]:
    resolved = load_problem(FOUR)
    plan = solve(resolved)
    return resolved, plan, PlaceDecision.model_validate(plan.decision)


def shares(plan: Envelope) -> dict[str, float]:
    return {each.of: each.value for each in plan.predictions if each.metric == "attainment"}


def test_a_slow_reference_has_the_same_requests_on_time(four: tuple[Resolved, Envelope, PlaceDecision]) -> None:
    """On the same requests, drawn and priced by its own code: steps by their own prompts, not from tables."""
    resolved, _, decision = four
    setting = read_setting(resolved)
    models = [workload.model for workload in setting.workloads]
    sizes = {role.name: role.parallelism.tp for role in decision.roles}
    groups = tuple(
        Group(
            next(c for c, each in enumerate(setting.prices.degrees) if each.tp == sizes[name]),
            tuple(sorted(models.index(host.model) for host in decision.hosts if host.group == name)),
        )
        for name in sizes
    )
    times, model, prompt, answer = drawn(resolved, 600, 5)
    stream = Stream(times, np.array(model), np.array(prompt), np.array(answer), int(0.1 * len(times)))
    simulated = reached(setting.groups, groups, [stream]).share_M
    slow = attained(resolved, decision, 600, 5)
    counts = np.bincount(stream.model[stream.first :])
    assert abs(float(((simulated - slow) * counts).sum() / counts.sum())) < 0.01


def test_the_plan_is_no_worse_than_any_shape_alone(four: tuple[Resolved, Envelope, PlaceDecision]) -> None:
    resolved, plan, _ = four
    setting = read_setting(resolved)
    streams = claimed_streams(setting)
    for shape in setting.groups.usable:
        groups = fill(setting.groups, partitions(setting.groups, shape), setting.load_M)
        assert reached(setting.groups, groups, streams).share <= shares(plan)[""] + 0.005


def test_a_plan_is_checked_to_its_bound(four: tuple[Resolved, Envelope, PlaceDecision]) -> None:
    _, plan, decision = four
    findings = check_plan(plan, decision, hand=AtHand(), proof=True)
    assert [finding for finding in findings if finding.verdict == FAILED] == []
    assert "certificate.bound_again" in {finding.rule for finding in findings}
    shifted = plan.certificate.model_copy(update={"bound": 0.999, "gap": abs(0.999 / shares(plan)[""] - 1.0)})
    wrong = check_plan(plan.model_copy(update={"certificate": shifted}), decision, hand=AtHand(), proof=True)
    assert "certificate.bound_again" in {finding.rule for finding in wrong if finding.verdict == FAILED}


def test_a_host_that_moves_away_changes_what_the_plan_may_state(
    four: tuple[Resolved, Envelope, PlaceDecision],
) -> None:
    _, plan, _ = four
    data: dict[str, Any] = json.loads(plan.model_dump_json(by_alias=True, exclude_none=True))
    data["decision"]["hosts"] = data["decision"]["hosts"][1:]
    edited = Envelope.model_validate(data)
    findings = check_plan(edited, PlaceDecision.model_validate(edited.decision), hand=AtHand())
    failed = {finding.rule for finding in findings if finding.verdict == FAILED}
    assert {"place.memory", "place.shares"} <= failed


SMALL: dict[str, Any] = {
    "schema": "planner.problem/1",
    "kind": "place",
    "models": {"a": {"name": "Qwen/Qwen3-0.6B"}, "b": {"name": "Qwen/Qwen3-1.7B"}},
    "cluster": {"pools": [{"gpu": "l4", "gpus": 4, "gpus_per_node": 4}]},
    "workloads": [
        {
            "name": name, "model": name, "input_tokens": 256, "output_tokens": 1,
            "load": {"rate": "20/s", "arrival_cv": 3}, "slo": {"latency": {"p50": "300ms"}},
        }
        for name in ("a", "b")
    ],
    "objective": {"maximize": "attainment"},
    "options": {"batching": False, "simulated_requests": 1000},
}  # fmt: skip


def small(**changes: object) -> Resolved:
    return resolve_document(given_document(json.loads(json.dumps(SMALL | changes)), "problem"), Path())


def test_the_fewest_gpus_keep_every_share_and_one_less_does_not_by_the_bound_or_the_search() -> None:
    plan = solve(small(objective={"minimize": "gpus"}))
    objective = plan.certificate.objective
    assert objective.value is not None
    assert plan.certificate.bound is not None
    assert plan.certificate.bound <= objective.value <= 4
    assert all(share >= 0.5 for name, share in shares(plan).items() if name)
    fewer = int(objective.value) - 1
    if fewer:
        with pytest.raises(Infeasible):
            solve(small(limits={"gpus": fewer}))


def test_the_fewest_gpus_hold_all_models() -> None:
    """Weights of three models, 16 GB each, take three L4, however few their requests."""
    models = {name: {"name": "meta-llama/Llama-3.1-8B"} for name in ("a", "b", "c")}
    rare = [{**SMALL["workloads"][0], "name": name, "model": name, "load": {"rate": "0.1/s"}} for name in models]
    setting = widest_setting(small(models=models, workloads=rare, objective={"minimize": "gpus"}))
    assert fewest_devices(setting, claimed_streams(setting)[:1]) == 3


def test_requests_that_are_late_on_an_idle_group_are_none_that_the_bound_counts() -> None:
    tight = [{**each, "output_tokens": 20, "slo": {"ttft": {"p50": "1ms"}}} for each in SMALL["workloads"][:1]]
    loads = [*tight, {**SMALL["workloads"][1], "output_tokens": 20, "slo": {"ttft": {"p50": "9s"}}}]
    setting = widest_setting(small(workloads=loads, options={"max_batch": 8, "simulated_requests": 400}))
    streams = claimed_streams(setting)[:2]
    second = np.concatenate([stream.model[stream.first :] for stream in streams]) == 1
    assert most_on_time(setting, streams) == pytest.approx(float(second.mean()))


def test_groups_with_stages_are_an_option_of_requests_of_one_pass() -> None:
    shapes = {name for name in solve(small()).certificate.axes["groups"] if isinstance(name, str)}
    assert {"tp1pp1", "tp1pp2", "tp2pp1", "tp1pp4"} <= shapes


def test_every_model_lives_on_as_many_groups_as_is_asked_for() -> None:
    options = {**SMALL["options"], "min_replicas": 3}
    decision = PlaceDecision.model_validate(solve(small(options=options)).decision)
    assert min(sum(host.model == name for host in decision.hosts) for name in ("a", "b")) >= 3


def workloads(**changes: object) -> list[dict[str, Any]]:
    return [SMALL["workloads"][0] | changes, SMALL["workloads"][1]]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"models": {**SMALL["models"], "b": {"name": "meta-llama/Llama-3.1-405B"}}}, "fits no group: it takes"),
        ({"options": {**SMALL["options"], "min_replicas": 9}}, "9 groups with `a`, and 4 GPUs make 4"),
        ({"models": {**SMALL["models"], "c": {"name": "Qwen/Qwen3-4B"}}}, "model `c` has no workload"),
        ({"models": {"b": SMALL["models"]["b"]}, "workloads": workloads(model="b")}, "two workloads of model `b`"),
        ({"workloads": workloads(slo={"latency": {"mean": "1s"}})}, "limits no percentile"),
        ({"workloads": workloads(slo={"latency": {"mean": "1s", "p90": "2s"}})}, "is of none"),
        ({"workloads": workloads(output_tokens=7)}, "for requests of one pass"),
        ({"objective": {"minimize": "cost"}}, "maximise attainment or minimise gpus"),
        ({"options": {"tp": [3]}}, "no group of tp"),
        ({"cluster": {"pools": [{"gpu": "l4", "gpus": 4}, {"gpu": "l40s", "gpus": 4}]}}, "2 pools"),
    ],
)
def test_problems_that_no_placement_answers_are_refused_with_what_to_do(changes: dict[str, Any], told: str) -> None:
    if "workloads" not in changes and "models" in changes and "c" not in changes["models"]:
        changes = {**changes, "cluster": {"pools": [{"gpu": "l4", "gpus": 4}]}}
    with pytest.raises(PlannerError, match=told) as raised:
        solve(small(**changes))
    assert raised.value.where
    assert raised.value.hint


def test_a_rate_beyond_any_placement_names_the_best_attainable() -> None:
    heavy = [each | {"load": {"rate": "900/s"}, "slo": {"latency": {"p99": "300ms"}}} for each in SMALL["workloads"]]
    with pytest.raises(Infeasible) as raised:
        solve(small(workloads=heavy))
    assert raised.value.proved
    assert raised.value.conflict[0]["limit"].startswith("attainment of")
    assert raised.value.conflict[0]["nearest"].endswith("%")


def test_models_that_have_no_room_together_are_told_by_it() -> None:
    large = {"a": {"name": "meta-llama/Llama-3.3-70B-Instruct"}, "b": {"name": "Qwen/Qwen3-8B"}}
    cluster = {"pools": [{"gpu": "l4", "gpus": 8, "gpus_per_node": 8}]}
    with pytest.raises(Infeasible) as raised:
        solve(small(models=large, cluster=cluster))
    assert [each["limit"] for each in raised.value.conflict] == ["8 GPUs", "2 models in their memory"]


def test_until_lost_groups_stand_again_only_models_with_groups_left_have_requests_on_time(
    four: tuple[Resolved, Envelope, PlaceDecision],
) -> None:
    resolved, plan, decision = four
    names = {workload.model: workload.spec.name for workload in resolved.workloads}
    homes = {model: {host.group for host in decision.hosts if host.model == model} for model in names}
    for role in decision.roles[:2]:
        told = until_then(plan, decision, {role.name})
        assert told.planned["attainment"] == pytest.approx(plan.certificate.objective.value)
        gone = {names[model] for model, groups in homes.items() if groups == {role.name}}
        for name, share in [row for row in shares(plan).items() if row[0]]:
            assert told.planned[f"attainment of {name}"] == pytest.approx(share)
            assert (told.left[f"attainment of {name}"] == 0.0) == (name in gone)
        assert told.left["attainment"] < told.planned["attainment"]
        assert [finding.where for finding in told.limits] == list(names.values())
    nothing = until_then(plan, decision, {role.name for role in decision.roles})
    assert set(nothing.left.values()) == {0.0}
    assert not any(finding.ok for finding in nothing.limits)


def crowded(max_batch: int, requests: int) -> Resolved:
    """Three models on eight A100 of which each lives on few GPUs where it is to be in time."""
    loads = {"chat": (800, 250, 12, "1s", "60ms"), "code": (1500, 150, 5, "1.5s", "60ms"),
             "big": (600, 400, 3, "2s", "80ms")}  # fmt: skip
    models = dict(zip(loads, ("meta-llama/Llama-3.1-8B", "Qwen/Qwen2.5-7B", "Qwen/Qwen3-14B"), strict=True))
    return small(
        models={name: {"name": model} for name, model in models.items()},
        cluster={"pools": [{"gpu": "a100_sxm", "gpus": 8}]},
        workloads=[
            {"name": name, "model": name, "input_tokens": {"mean": prompt, "cv": 1},
             "output_tokens": {"mean": answer, "cv": 1}, "load": {"rate": f"{rate}/s"},
             "slo": {"ttft": {"p95": ttft}, "tpot": {"p95": tpot}}}
            for name, (prompt, answer, rate, ttft, tpot) in loads.items()
        ],
        options={"max_batch": max_batch, "simulated_requests": requests},
    )  # fmt: skip


def test_models_leave_groups_until_every_one_has_its_share_on_time_with_slightly_larger_engines_too() -> None:
    reached = []
    for most in (24, 28):
        plan = solve(crowded(most, 500))
        assert min(shares(plan).values()) >= 0.95
        hosts = PlaceDecision.model_validate(plan.decision).hosts
        assert {len({host.group for host in hosts if host.model == name}) for name in ("chat", "code", "big")} != {8}
        assert {host.max_batch for host in hosts} <= set(batch_sizes(most))
        assert certified(plan) >= shares(plan)[""]
        reached.append(shares(plan)[""])
    assert reached[1] >= reached[0] * (1.0 - 1e-3)


def certified(plan: Envelope) -> float:
    assert plan.certificate.bound is not None
    return plan.certificate.bound


def test_batches_that_are_too_small_are_named_with_those_that_would_do() -> None:
    with pytest.raises(Infeasible) as raised:
        solve(crowded(4, 200))
    limits = {each["limit"]: each["nearest"] for each in raised.value.conflict}
    assert limits["options.max_batch = 4"] == "all are kept with 16"
    assert not raised.value.proved


def test_shares_that_places_in_engines_leave_no_room_for_are_proven_impossible() -> None:
    setting = widest_setting(crowded(1, 1500))
    assert not can_be_kept(setting, claimed_streams(setting))


@given(st.integers(1, 300), st.integers(1, 300))
def test_engines_of_a_smaller_limit_are_among_those_of_a_larger_one(limit: int, other: int) -> None:
    low, high = sorted((limit, other))
    assert set(batch_sizes(low)) <= set(batch_sizes(high))
    assert 0.8 * low <= max(batch_sizes(low)) <= low


def decoding(max_batch: int) -> Envelope:
    """The plan of two small models on four L4 that answer in two tokens."""
    each_decodes = [each | {"output_tokens": 2} for each in SMALL["workloads"]]
    return solve(small(workloads=each_decodes, options={"max_batch": max_batch, "simulated_requests": 200}))


def test_a_limit_beyond_what_memory_holds_leaves_the_engines_that_fit() -> None:
    plan = decoding(1_000_000)
    assert 64 <= PlaceDecision.model_validate(plan.decision).hosts[0].max_batch < 1_000_000
    assert min(shares(plan).values()) >= 0.5


def paced(gpus: int, fast: float, many: float, tpot_s: float, most: int, objective: dict[str, str]) -> Resolved:
    """An 8B in bursts whose few requests may wait but not stutter, beside a 1.7B of many that may, on L4."""
    loads = {"fast": (400, 200, fast, 10.0, tpot_s), "many": (300, 400, many, 4.0, 0.1)}
    return small(
        models={"fast": {"name": "Qwen/Qwen3-8B"}, "many": {"name": "Qwen/Qwen3-1.7B"}},
        cluster={"pools": [{"gpu": "l4", "gpus": gpus}]},
        workloads=[
            {"name": name, "model": name, "input_tokens": {"mean": prompt, "cv": 0.5},
             "output_tokens": {"mean": answer, "cv": 0.5}, "load": {"rate": f"{rate}/s", "arrival_cv": 3},
             "slo": {"ttft": {"p95": f"{ttft_s}s"}, "tpot": {"p95": f"{tpot_s}s"}}}
            for name, (prompt, answer, rate, ttft_s, tpot_s) in loads.items()
        ],
        objective=objective,
        options={"max_batch": most, "simulated_requests": 300},
    )  # fmt: skip


def planned(problem: Resolved) -> Envelope | None:
    """None where the search has no plan."""
    try:
        return solve(problem)
    except Infeasible:
        return None


def test_a_model_that_must_not_stutter_has_fewer_sequences_than_one_of_many_requests() -> None:
    problem = paced(8, 3, 60, 0.03, 128, {"maximize": "attainment"})
    plan = solve(problem)
    decision = PlaceDecision.model_validate(plan.decision)
    sizes = {model: {host.max_batch for host in decision.hosts if host.model == model} for model in ("fast", "many")}
    assert max(sizes["fast"]) < min(sizes["many"]) <= 128
    assert min(shares(plan).values()) >= 0.95
    assert certified(plan) >= shares(plan)[""]
    assert not [row for row in check_plan(plan, decision, proof=True, hand=AtHand()) if row.verdict == FAILED]
    limits = as_engines(plan, decision)
    assert {(role.model, role.limits["max_batch"]) for role in limits.roles} == {
        (model, size) for model, own in sizes.items() for size in own
    }
    with mock.patch.object(choose, "size_of_each", return_value=None):
        assert planned(problem) is None


@settings(max_examples=8, deadline=None)
@given(
    st.integers(2, 6),
    st.floats(0.5, 4),
    st.floats(5, 40),
    st.sampled_from((0.03, 0.045, 0.1)),
    st.sampled_from((24, 64)),
)
def test_sizes_of_each_model_keep_what_one_for_all_keeps_on_no_more_gpus(
    gpus: int, fast: float, many: float, tpot_s: float, most: int
) -> None:
    problem = paced(gpus, fast, many, tpot_s, most, {"minimize": "gpus"})
    with mock.patch.object(choose, "size_of_each", return_value=None):
        alike = planned(problem)
    if alike is not None:
        own = solve(problem).certificate
        assert own.objective.value is not None
        assert alike.certificate.objective.value is not None
        assert own.bound is not None
        assert own.bound <= own.objective.value <= alike.certificate.objective.value


def test_the_bound_is_over_sizes_of_each_model() -> None:
    setting = widest_setting(paced(4, 3, 60, 0.03, 24, {"maximize": "attainment"}))
    streams = claimed_streams(setting)[:3]
    bound = most_on_time(setting, streams)
    each = [setting.with_batches(sizes) for sizes in itertools.product((1, 4, 24), repeat=2)]
    bounds = [bound_on_time(own.groups, streams) for own in each if own is not None]
    assert len(bounds) == len(each)
    assert len({round(share, 6) for share in bounds}) > 2
    assert max(bounds) <= bound


def test_engines_of_a_model_have_one_size() -> None:
    plan = decoding(8)
    data: dict[str, Any] = json.loads(plan.model_dump_json(by_alias=True, exclude_none=True))
    hosts = data["decision"]["hosts"]
    model = max({host["model"] for host in hosts}, key=lambda name: sum(host["model"] == name for host in hosts))
    next(host for host in hosts if host["model"] == model)["max_batch"] = 7
    edited = Envelope.model_validate(data)
    findings = check_plan(edited, PlaceDecision.model_validate(edited.decision), hand=AtHand())
    assert any(f"engines of `{model}` take 7 and" in row.what for row in findings if row.verdict == FAILED)


def test_engines_of_a_plan_take_no_more_than_the_problem_allows() -> None:
    plan = decoding(8)
    data: dict[str, Any] = json.loads(plan.model_dump_json(by_alias=True, exclude_none=True))
    data["decision"]["hosts"] = [{**host, "max_batch": 16} for host in data["decision"]["hosts"]]
    edited = Envelope.model_validate(data)
    findings = check_plan(edited, PlaceDecision.model_validate(edited.decision), hand=AtHand())
    assert any("the problem allows 8" in finding.what for finding in findings if finding.verdict == FAILED)
