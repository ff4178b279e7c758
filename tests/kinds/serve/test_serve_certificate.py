"""Certificates of serving plans: what they list, and that a plan whose proof is not its own fails the check."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from serve_problems import broken_rules, objective_of, small
from static_level import solve

from planner.kinds.serve.options import ServeDecision
from planner.plan.schema import Envelope

Proof = dict[str, Any]
PARETO = {"objective": {"pareto": ["tokens_per_s_per_gpu", "tokens_per_s_per_user"]}}


@pytest.fixture(scope="module")
def plan() -> Envelope:
    return solve(small())


def tampered(plan: Envelope, change: Callable[[dict[str, Any]], None]) -> set[str]:
    """The rules that the plan fails once `change` was made to it."""
    data = copy.deepcopy(plan.model_dump(mode="json", by_alias=True))
    change(data)
    return {finding.rule for finding in broken_rules(Envelope.model_validate(data))}


def test_an_untouched_plan_keeps_every_rule(plan: Envelope) -> None:
    assert not tampered(plan, lambda data: None)


def test_every_axis_is_listed_with_its_values(plan: Envelope) -> None:
    axes = plan.certificate.axes
    assert axes["tp"] == [1, 2]
    assert axes["max_batch"] == [8, 64]
    assert {"mode", "pool", "pp", "dp", "moe_tp", "ep", "chunk_tokens", "prefill_chunk_tokens", "instances"} <= set(
        axes
    )


def test_the_better_of_two_modes_comes_with_what_the_other_loses(plan: Envelope) -> None:
    alternatives: Any = plan.certificate.next_best
    assert alternatives
    for row in alternatives:
        assert row["objective"] is None or row["objective"] <= objective_of(plan) * (1 + 1e-9)


def raise_objective(data: dict[str, Any]) -> None:
    data["certificate"]["objective"]["value"] *= 1.1
    data["certificate"]["bound"] *= 1.1


def raise_everything(data: dict[str, Any]) -> None:
    raise_objective(data)
    for prediction in data["predictions"]:
        if prediction["metric"] == "goodput_per_gpu":
            prediction["value"] = data["certificate"]["objective"]["value"]


def lower_bound(data: dict[str, Any]) -> None:
    data["certificate"]["bound"] *= 0.9


def forget_multipliers(data: dict[str, Any]) -> None:
    for node in data["certificate"]["proof"]["tree"]["nodes"]:
        if "duals" in node:
            node["duals"] = []


def ease_the_model(data: dict[str, Any]) -> None:
    """Twice the devices in the model alone."""
    for row in data["certificate"]["proof"]["model"]["rows"]:
        if row[0].startswith("C4"):
            row[-1] *= 2


def ease_model_and_mix(data: dict[str, Any]) -> None:
    data["certificate"]["proof"]["mix"]["pools"][0]["nodes"] = [[8, 1]]


def other_load(data: dict[str, Any]) -> None:
    data["certificate"]["proof"]["mix"]["demands"][0]["rate_per_s"] = 1.0


def other_unit(data: dict[str, Any]) -> None:
    data["certificate"]["proof"]["objective_unit"] *= 2


def one_replica_more(data: dict[str, Any]) -> None:
    data["decision"]["roles"][0]["replicas"] += 1


def another_batch(data: dict[str, Any]) -> None:
    data["decision"]["roles"][0]["limits"]["max_batch"] += 1


def no_point(data: dict[str, Any]) -> None:
    del data["certificate"]["proof"]["values"]


def short_point(data: dict[str, Any]) -> None:
    data["certificate"]["proof"]["values"].pop()


TAMPERED: list[tuple[Callable[[dict[str, Any]], None], str]] = [
    (raise_objective, "certificate.point"),
    (raise_everything, "certificate.point"),
    (lower_bound, "certificate.proof"),
    (forget_multipliers, "certificate.proof"),
    (ease_the_model, "certificate.model"),
    (ease_model_and_mix, "certificate.cluster"),
    (other_load, "certificate.load"),
    (other_unit, "certificate.objective"),
    (one_replica_more, "certificate.instances"),
    (another_batch, "certificate.instances"),
    (no_point, "certificate.model"),
    (short_point, "certificate.point"),
]


@pytest.mark.parametrize(("change", "rule"), TAMPERED, ids=[change.__name__ for change, _ in TAMPERED])
def test_a_plan_tampered_with_fails_the_check(
    plan: Envelope, change: Callable[[dict[str, Any]], None], rule: str
) -> None:
    assert rule in tampered(plan, change)


def test_a_proof_of_another_problem_does_not_pass(plan: Envelope) -> None:
    easier = solve(small({"cluster.pools.0.gpus": 2}))

    def swap(data: dict[str, Any]) -> None:
        data["certificate"] = easier.certificate.model_dump(mode="json")

    assert {"certificate.cluster", "certificate.instances"} <= tampered(plan, swap)


def test_the_frontier_holds_only_points_that_no_other_beats_and_the_plan_is_its_best_in_throughput() -> None:
    plan = solve(small(PARETO))
    points = ServeDecision.model_validate(plan.decision).frontier
    assert len(points) > 3
    for point in points:
        assert point.bound_tokens_per_s_per_gpu >= point.tokens_per_s_per_gpu
        assert point.bound_tokens_per_s_per_gpu <= point.tokens_per_s_per_gpu * (1 + 1e-6)
        for other in points:
            faster = other.tokens_per_s_per_user >= point.tokens_per_s_per_user
            assert point is other or not (faster and other.tokens_per_s_per_gpu >= point.tokens_per_s_per_gpu)
    assert objective_of(plan) == pytest.approx(max(point.tokens_per_s_per_gpu for point in points), rel=1e-9)
    assert not broken_rules(plan)


def test_the_frontier_of_two_models_is_as_fast_as_the_slower_of_their_instances(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("planner.kinds.serve.steady.frontier.SPEEDS_TOKENS_PER_S", (20,))
    other = {"name": "code", "model": "other", "input_tokens": 500, "output_tokens": 100, "slo": {"tpot": "40ms"}}
    first = {"workloads.0.model": "llama", "workloads.0.slo": {"ttft": "2s", "tpot": "40ms"}}
    models = {"models.other": {"name": "Qwen/Qwen3-14B"}, "workloads.1": other}
    plan = solve(small({**copy.deepcopy(PARETO), **first, **models, "options.modes": ["colocated"]}))
    (point,) = ServeDecision.model_validate(plan.decision).frontier
    assert len(point.roles) == 2
    slowest_s = max(value.value for value in plan.predictions if value.metric == "tpot_s")
    assert 20 <= point.tokens_per_s_per_user <= 1.0 / slowest_s * (1 + 1e-9)
