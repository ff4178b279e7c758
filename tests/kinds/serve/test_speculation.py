"""Serving plans that speculate: what is searched, what is chosen at which batch, what of it is checked."""

import copy
import functools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from serve_problems import broken_rules, objective_of, small, value_of
from static_level import solve

from planner.diff.plans import diff_plans
from planner.errors import PlannerError
from planner.explain.explanation import explain_plan
from planner.kinds.serve.options import ServeDecision, ServeOptions
from planner.kinds.serve.steady.demand import channels_of
from planner.kinds.serve.steady.evaluate import time_points
from planner.kinds.serve.steady.points import Tally, make_points
from planner.kinds.serve.steady.search import prepare
from planner.plan.schema import Envelope
from planner.problem.resolve import Resolved

QWEN: dict[str, Any] = {
    "models": {"llama": {"name": "Qwen/Qwen3-8B"}, "draft": {"name": "Qwen/Qwen3-0.6B"}},
    "workloads.0.model": "llama",
}
DRAFT = {"method": "model", "model": "draft", "acceptance": "75%", "draft_tokens": [0, 1, 3]}
STATED = {"method": "stated", "draft_step": "100us", "acceptance": "75%", "draft_tokens": [0, 3]}
SLOW = {"ttft": "2s", "tpot": "500ms"}
HURRY = 1.06  # of fast readers' limit over the plain step of one sequence
BATCHES = [1, 2, 4, 8, 256]


def problem(speculation: dict[str, Any] | None, slo: dict[str, str], modes: list[str], **more: list[int]) -> Resolved:
    options = {"modes": modes, "tp": [1], "max_batch": BATCHES, "chunk_tokens": [4096]}
    options |= {} if speculation is None else {"speculation": speculation}
    return small(copy.deepcopy(QWEN) | {"options": options, "workloads.0.slo": slo} | more)


def solved(speculation: dict[str, Any] | None, slo: dict[str, str], modes: list[str]) -> tuple[Envelope, ServeDecision]:
    plan = solve(problem(speculation, slo, modes))
    return plan, ServeDecision.model_validate(plan.decision)


@functools.cache
def hurried() -> dict[str, str]:
    """Limits of users who read about as fast as one sequence alone is decoded without drafts."""
    setting = prepare(problem(None, SLOW, ["disaggregated"]))
    pool_costs, shapes = setting.costs_of_pool["llama", 0], setting.spaces["llama", 0].shapes
    points = make_points(
        "decode", pool_costs, shapes, setting.options, setting.targets, Tally(), copies=1, release=setting.release
    )
    alone_s = time_points("decode", pool_costs, setting.targets[0], points).tpot_s[points.batch == 1.0].min()
    return {"ttft": "1s", "tpot": f"{HURRY * 1e3 * alone_s:.3f}ms"}


@pytest.fixture(scope="module")
def drafted() -> tuple[Envelope, ServeDecision]:
    """Prefill and decode apart, for users who read fast."""
    return solved(DRAFT, hurried(), ["disaggregated"])


def drafts_of(decision: ServeDecision) -> dict[str, int]:
    return {role.function: int(role.limits.get("draft_tokens", 0)) for role in decision.roles}


def test_speculation_pays_for_small_batches_and_not_for_large_ones() -> None:
    fast, slow = (solved(DRAFT, slo, ["colocated"]) for slo in (hurried(), SLOW))
    plain_fast, plain_slow = (solved(None, slo, ["colocated"])[0] for slo in (hurried(), SLOW))
    assert drafts_of(fast[1])["colocated"] > 0
    assert objective_of(fast[0]) > 1.2 * objective_of(plain_fast)
    assert drafts_of(slow[1]) == {"colocated": 0}
    assert objective_of(slow[0]) == objective_of(plain_slow)
    assert slow[1].drafting is None
    others: Any = slow[0].certificate.next_best
    (only,) = (row for row in others if row["plan"] == "with speculation only")
    assert only["loss"] > 0.0


def test_no_drafts_give_the_plan_without_speculation() -> None:
    none, plain = (solved(drafts, hurried(), ["disaggregated"]) for drafts in (DRAFT | {"draft_tokens": [0]}, None))
    assert none[1].model_dump() == plain[1].model_dump()
    assert none[0].predictions == plain[0].predictions


def test_every_draft_right_and_free_multiplies_tokens_by_the_tokens_of_a_step() -> None:
    free = {"method": "stated", "draft_step": "0us", "acceptance": "100%", "draft_tokens": [0, 1, 3]}
    setting = prepare(problem(free, hurried(), ["disaggregated"]))
    pool_costs = setting.costs_of_pool["llama", 0]
    shapes, (target,) = setting.spaces["llama", 0].shapes, setting.targets
    points = make_points(
        "decode",
        pool_costs,
        shapes,
        setting.options,
        [target],
        Tally(),
        copies=1,
        release=setting.release,
        drafts=(0, 1, 3),
    )
    timed = time_points("decode", pool_costs, target, points)
    pace_s, alone = timed.tpot_s * (points.drafts + 1.0), points.shards.pp == 1.0
    assert timed.step.seconds[alone] == pytest.approx(pace_s[alone], rel=1e-12)
    assert (pace_s[~alone] >= timed.step.seconds[~alone]).all()  # batches of a pipeline may be uneven


@pytest.mark.parametrize("function", ["colocated", "decode"])
def test_times_fall_as_more_drafts_are_right(function: str) -> None:
    paces = []
    for acceptance in (0.0, 0.3, 0.6, 0.9, 1.0):
        setting = prepare(problem(STATED | {"acceptance": acceptance}, hurried(), ["colocated"]))
        pool_costs, shapes = setting.costs_of_pool["llama", 0], setting.spaces["llama", 0].shapes
        points = make_points(
            function,
            pool_costs,
            shapes,
            setting.options,
            setting.targets,
            Tally(),
            copies=1,
            release=setting.release,
            drafts=(3,),
        )
        paces.append(time_points(function, pool_costs, setting.targets[0], points).tpot_s)
    assert np.all(np.diff(np.array(paces), axis=0) <= 0.0)


def test_prompts_pass_the_drafter_where_they_are_prefilled(drafted: tuple[Envelope, ServeDecision]) -> None:
    plan, decision = drafted
    assert drafts_of(decision) == {"prefill": 1, "decode": 3}
    plain = {role.function: role for role in solved(None, hurried(), ["disaggregated"])[1].roles}
    for role in decision.roles:
        assert role.memory is not None
        other = plain[role.function].memory
        assert other is not None
        assert (
            role.memory.weights_bytes * role.parallelism.tp > other.weights_bytes * plain[role.function].parallelism.tp
        )
    assert [role.function for role in decision.roles] == ["prefill", "decode"]
    assert not broken_rules(plan)


def test_a_stated_drafter_asks_nothing_of_prefill() -> None:
    plan, decision = solved(STATED, hurried(), ["disaggregated"])
    assert drafts_of(decision) == {"prefill": 0, "decode": 3}
    assert not broken_rules(plan)


def test_the_drafter_and_its_cache_are_counted() -> None:
    setting = prepare(problem(DRAFT, SLOW, ["colocated"]))
    pool_costs, shapes = setting.costs_of_pool["llama", 0], setting.spaces["llama", 0].shapes
    points = make_points(
        "decode",
        pool_costs,
        shapes[:1],
        setting.options,
        setting.targets,
        Tally(),
        copies=1,
        release=setting.release,
        drafts=(0, 3),
    )
    plain, drafting = (np.flatnonzero((points.drafts == drafts) & (points.batch == 8.0))[0] for drafts in (0.0, 3.0))
    drafter = pool_costs.costs.drafter
    assert drafter is not None
    assert drafter.arch is not None
    added = points.weight_bytes[drafting] - points.weight_bytes[plain]
    assert added == pytest.approx(0.6e9 * 2, rel=0.1)
    assert points.kv_bytes[0][drafting] > 1.5 * points.kv_bytes[0][plain]  # 28 layers of a cache as wide, beside 36
    assert points.activation_bytes[drafting] > points.activation_bytes[plain]


def test_only_those_hand_over_whose_prompts_the_drafter_has_seen() -> None:
    setting = prepare(problem(DRAFT, hurried(), ["disaggregated"]))
    plain, drafted = channels_of(setting.targets, 1, (False, True))
    assert (plain.index, drafted.index) == (0, 1)
    (target,) = setting.targets
    assert drafted.moved_bytes(target) > plain.moved_bytes(target) == target.transfer_bytes


def test_the_plan_says_what_drafts_yield(drafted: tuple[Envelope, ServeDecision]) -> None:
    plan, decision = drafted
    assert decision.drafting is not None
    assert decision.drafting.tokens_per_step == {"decode": pytest.approx(1 + 0.75 + 0.75**2 + 0.75**3)}
    assert decision.drafting.drafter == "Qwen/Qwen3-0.6B"
    assert "3 drafts a step" in decision.reasons()[0]
    assert any("drafts of Qwen/Qwen3-0.6B are right with 0.75" in text for text in plan.assumptions)
    assert not any("speculative decoding" in text for text in plan.assumptions)
    steps = plan.evidence.steps or {}
    assert 0.0 < steps["decode"].seconds["drafting"] < sum(steps["decode"].seconds.values())
    assert plan.certificate.axes["draft_tokens"] == [0, 1, 3]
    assert value_of(plan, "tpot_s", "chat") <= float(hurried()["tpot"].removesuffix("ms")) / 1e3


def test_explain_and_diff_name_the_drafts(drafted: tuple[Envelope, ServeDecision]) -> None:
    plan, decision = drafted
    said = json.dumps([str(fact) for fact in explain_plan(plan, decision, "decode.max_batch").facts])
    assert "max_batch" in said
    changes = diff_plans(drafted, solved(None, hurried(), ["disaggregated"]))
    assert "draft_tokens" in str(changes)


def test_check_prices_speculating_roles_again(drafted: tuple[Envelope, ServeDecision]) -> None:
    plan, _ = drafted

    def rules(edit: Callable[[dict[str, Any]], object]) -> set[str]:
        decision: dict[str, Any] = copy.deepcopy(plan.decision)
        edit(decision)
        return {finding.rule for finding in broken_rules(plan.model_copy(update={"decision": decision}))}

    def decode(decision: dict[str, Any]) -> dict[str, Any]:
        return next(role for role in decision["roles"] if role["function"] == "decode")

    assert "serve.draft_memory" in rules(lambda d: decode(d)["memory"].update(weights_bytes=1e9))
    assert "serve.tokens_per_step" in rules(lambda d: d["drafting"]["tokens_per_step"].update(decode=3.9))
    assert "certificate.instances" in rules(lambda d: decode(d)["limits"].update(draft_tokens=1))
    proof: dict[str, Any] = copy.deepcopy(plan.certificate.proof)
    for shape in proof["mix"]["shapes"]:
        shape["rate_per_s"] = [1.5 * rate for rate in shape["rate_per_s"]]
    other = plan.model_copy(update={"certificate": plan.certificate.model_copy(update={"proof": proof})})
    assert "serve.draft_rate" in {finding.rule for finding in broken_rules(other)}


def test_a_batch_with_drafts_is_priced_again_beside_the_smaller_ones_that_tell_what_a_sequence_adds() -> None:
    resolved = problem(
        DRAFT, {"ttft": "300ms", "tpot": "8ms"}, ["colocated"], **{"options.tp": [2], "options.max_batch": [8, 16]}
    )
    plan = solve(resolved)
    decision = ServeDecision.model_validate(plan.decision)
    assert drafts_of(decision) == {"colocated": 1}
    assert decision.roles[0].limits["max_batch"] == 16
    assert broken_rules(plan) == []


def test_shapes_with_pipeline_stages_run_without_drafts() -> None:
    setting = prepare(problem(STATED, SLOW, ["colocated"], **{"options.pp": [1, 2]}))
    pool_costs, shapes, tally = setting.costs_of_pool["llama", 0], setting.spaces["llama", 0].shapes, Tally()
    points = make_points(
        "colocated",
        pool_costs,
        shapes,
        setting.options,
        setting.targets,
        tally,
        copies=1,
        release=setting.release,
        drafts=(0, 3),
    )
    assert set(points.drafts[points.shards.pp > 1]) == {0.0}
    assert set(points.drafts[points.shards.pp == 1]) == {0.0, 3.0}


@pytest.mark.parametrize(
    ("speculation", "named"),
    [
        ({"method": "mtp", "acceptance": 0.7, "model": "draft"}, "`model` is of method"),
        ({"method": "model", "acceptance": 0.7}, "need `model`"),
        ({"method": "stated", "acceptance": 0.7}, "need `draft_step`"),
        ({"method": "mtp", "acceptance": 1.7}, "acceptance"),
        ({"method": "stated", "acceptance": 0.7, "draft_step": "1ms", "algorithm": "eagle3"}, "checkpoint"),
    ],
)
def test_what_does_not_belong_together_is_refused(speculation: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        ServeOptions.model_validate({"speculation": speculation})


def test_modes_without_drafts_are_refused_with_drafts_alone() -> None:
    with pytest.raises(ValidationError, match="run without drafts"):
        ServeOptions.model_validate({"modes": ["attention-ffn"], "speculation": STATED | {"draft_tokens": [1]}})
    with pytest.raises(ValidationError, match="placements without drafts"):
        ServeOptions.model_validate({"judged_by": "simulation", "speculation": STATED})
    with pytest.raises(PlannerError, match="no prediction heads"):
        prepare(problem({"method": "mtp", "acceptance": 0.7}, hurried(), ["colocated"]))
