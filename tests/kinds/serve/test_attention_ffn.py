"""Decoding with attention and feed-forward apart: what is searched, when it is chosen, what of it is checked."""

import copy
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from serve_problems import broken_rules, objective_of, small
from static_level import solve

from planner.check import check_plan
from planner.costs.rates.calibration import load_calibration
from planner.costs.rates.engine_overheads import EngineOverheads
from planner.costs.rates.roofline import Roofline
from planner.costs.serving.attention_ffn import Port
from planner.emit.registry import emit
from planner.errors import Infeasible, PlannerError
from planner.explain.explanation import explain_plan
from planner.hardware.cluster import Pool
from planner.hardware.library import find_node
from planner.kinds.serve.options import ServeDecision, ServeOptions
from planner.kinds.serve.steady.attention_ffn import best_unsplit
from planner.kinds.serve.steady.points import PoolCosts, Tally
from planner.kinds.serve.steady.search import list_candidates, prepare
from planner.kinds.serve.steady.steps.formulas import Costs
from planner.kinds.serve.steady.units import Sides, splits, units_of
from planner.models.library import find_model
from planner.plan.placement import role_devices
from planner.plan.schema import Envelope

MOE: dict[str, Any] = {
    "models.llama": {"name": "Qwen/Qwen3-30B-A3B", "weights": "fp8", "kv_cache": "fp8"},
    "cluster.pools.0": {"gpu": "h100", "nodes": 2},
    "workloads.0.slo": {"ttft": "1s", "tpot": "20ms"},
    "options": {
        "modes": ["disaggregated", "attention-ffn"], "tp": [1], "pp": [1], "max_batch": [16, 64, 256],
        "chunk_tokens": [4096],
    },
}  # fmt: skip
SLOW = {
    "cluster.pools.0.nic_bandwidth": "0.8GB/s", "options.attention_gpus": [8], "options.ffn_gpus": [8],
    "options.max_batch": [16, 24, 32, 48, 64, 256],
}  # fmt: skip
"""Units that span nodes alone, over a network that is too slow for them."""


def solved(edits: dict[str, Any] | None = None) -> tuple[Envelope, ServeDecision]:
    plan = solve(small(copy.deepcopy(MOE) | (edits or {})))
    return plan, ServeDecision.model_validate(plan.decision)


@pytest.fixture(scope="module")
def apart() -> tuple[Envelope, ServeDecision]:
    return solved({"options.modes": ["attention-ffn"]})


def functions(decision: ServeDecision) -> set[str]:
    return {role.function for role in decision.roles}


def test_units_fill_part_of_a_domain_or_whole_ones() -> None:
    (pool_costs,) = prepare(small(copy.deepcopy(MOE))).costs_of_pool.values()
    sides, pool = Sides(pool_costs, pool_costs), pool_costs.pool
    for attention, ffn in splits(sides, ServeOptions()):
        total = attention + ffn
        assert total in (2, 4, 8) or (attention % 8 == 0 and ffn % 8 == 0)
        assert total <= pool.num_gpus
    assert splits(sides, ServeOptions(attention_gpus=(3,), ffn_gpus=(1, 5))) == [(3, 1), (3, 5)]


def test_the_mode_alone_makes_plans_of_prefill_attention_and_feed_forward(
    apart: tuple[Envelope, ServeDecision],
) -> None:
    plan, decision = apart
    assert decision.mode == "attention-ffn"
    assert functions(decision) == {"prefill", "attention", "ffn"}
    assert not broken_rules(plan)
    sides = {role.function: role for role in decision.roles}
    assert sides["attention"].replicas == sides["ffn"].replicas
    (onward,) = (route for route in decision.routing if route.source == sides["attention"].name)
    assert onward.to == sides["ffn"].name


def test_both_sides_of_a_unit_inside_a_node_share_it(apart: tuple[Envelope, ServeDecision]) -> None:
    _, decision = apart
    sides = [role for role in decision.roles if role.function in ("attention", "ffn")]
    assert sum(role.parallelism.devices for role in sides) <= 8
    for replica in range(sides[0].replicas):
        nodes = set()
        for role in sides:
            each = role.parallelism.devices
            placed = [device for _, device in role_devices(decision.placement, role.name)]
            nodes |= {device // 8 for device in placed[replica * each : (replica + 1) * each]}
        assert len(nodes) == 1


def test_a_larger_choice_of_modes_is_never_worse_and_takes_what_pays() -> None:
    values = {}
    for modes in (("disaggregated",), ("attention-ffn",), ("disaggregated", "attention-ffn")):
        plan, decision = solved({"options.modes": list(modes)})
        values[modes] = objective_of(plan)
        assert "attention" in functions(decision) or "attention-ffn" not in modes
    both = values["disaggregated", "attention-ffn"]
    assert both >= max(values.values()) * (1.0 - 1e-9)
    assert values["disaggregated",] < values["attention-ffn",]


def test_a_slow_network_between_the_sides_makes_it_refused() -> None:
    plan, decision = solved(SLOW)
    assert decision.mode == "disaggregated"
    verdict = decision.attention_ffn
    assert verdict is not None
    assert not verdict.pays
    assert verdict.limited_by == "network"
    assert not broken_rules(plan)
    told = [fact.what for fact in explain_plan(plan, decision).facts if "does not pay" in fact.what]
    assert len(told) == 1


def test_a_plan_says_nothing_of_it_where_the_mode_is_not_searched() -> None:
    assert solved({"options.modes": ["disaggregated"]})[1].attention_ffn is None


def test_candidates_of_a_split_have_the_best_rate_of_all_its_units() -> None:
    setting = prepare(small(copy.deepcopy(MOE) | {"options.modes": ["attention-ffn"]}))
    (pool_costs,), target = setting.costs_of_pool.values(), setting.targets[0]
    rates = {
        (candidate.shape.devices, candidate.ffn.shape.devices): candidate.capacities[0].rate_per_s
        for candidate in list_candidates(setting, setting.targets, Tally())
        if candidate.ffn is not None and candidate.capacities[0] is not None
    }
    best: dict[tuple[int, int], float] = {}
    room, filled = (
        pool_costs.memory_bytes - pool_costs.costs.engine.workspace_bytes,
        setting.options.max_decode_occupancy,
    )
    sides = Sides(pool_costs, pool_costs)
    for unit in units_of(sides, setting.options):
        for batch in (16.0, 64.0, 256.0):
            units = sides.units(unit.attention, unit.ffn, unit.micro_batches)
            tpot_s = float(sides.tpot_s(units, np.array([batch]), target.context)[0])
            cache = (
                batch * target.resident_tokens * 2 * 4 * 128 * 48 / min(unit.attention.tp, 4)
            )  # keys and values, fp8
            if tpot_s <= target.tpot_limit_s and cache < 0.85 * room:  # none is near the edge
                split = (unit.attention.devices, unit.ffn.devices)
                best[split] = max(best.get(split, 0.0), filled * batch * unit.attention.dp / (target.osl * tpot_s))
    assert rates.keys() == best.keys()
    for split, rate in best.items():
        assert rates[split] == pytest.approx(rate, rel=1e-9)


def tampered(plan: Envelope, change: Callable[[dict[str, Any]], None]) -> set[str]:
    """The rules that a plan breaks after `change` of its decision."""
    decision = copy.deepcopy(plan.decision)
    change(decision)
    return {finding.rule for finding in broken_rules(plan.model_copy(update={"decision": decision}))}


def role_at(decision: dict[str, Any], function: str) -> dict[str, Any]:
    (role_of_function,) = (role for role in decision["roles"] if role["function"] == function)
    assert isinstance(role_of_function, dict)
    return role_of_function


def test_check_refuses_sides_that_do_not_belong_together(apart: tuple[Envelope, ServeDecision]) -> None:
    plan, _ = apart

    def unpaired(decision: dict[str, Any]) -> None:
        decision["routing"] = [route for route in decision["routing"] if route["to"] != "ffn"]

    def other_turns(decision: dict[str, Any]) -> None:
        role_at(decision, "ffn")["limits"]["micro_batches"] = 7

    def straight_to_ffn(decision: dict[str, Any]) -> None:
        decision["routing"][0]["to"] = "ffn"

    assert {"serve.handover", "serve.sides"} <= tampered(plan, unpaired)
    assert "serve.micro_batches" in tampered(plan, other_turns)
    assert "serve.handover" in tampered(plan, straight_to_ffn)


def test_check_prices_units_again(apart: tuple[Envelope, ServeDecision]) -> None:
    plan, _ = apart

    def crowded(decision: dict[str, Any]) -> None:
        role_at(decision, "attention")["limits"]["max_batch"] = 4096

    def light(decision: dict[str, Any]) -> None:
        role_at(decision, "ffn")["memory"]["weights_bytes"] /= 2.0

    assert "serve.unit_step" in tampered(plan, crowded)
    assert "serve.unit_weights" in tampered(plan, light)
    proof: dict[str, Any] = copy.deepcopy(plan.certificate.proof)
    for shape in proof["mix"]["shapes"]:
        shape["rate_per_s"] = [1.5 * rate for rate in shape["rate_per_s"]]
    other = plan.model_copy(update={"certificate": plan.certificate.model_copy(update={"proof": proof})})
    assert "serve.unit_rate" in {finding.rule for finding in broken_rules(other)}


def test_a_unit_has_its_rate_from_the_channel_that_serves_the_workload(apart: tuple[Envelope, ServeDecision]) -> None:
    """A type of the same name that cannot serve it, listed before, says nothing of the rate."""
    plan, _ = apart
    proof: dict[str, Any] = copy.deepcopy(plan.certificate.proof)
    shapes = proof["mix"]["shapes"]
    proof["mix"]["shapes"] = [{**shape, "rate_per_s": [0.0]} for shape in shapes] + shapes
    other = plan.model_copy(update={"certificate": plan.certificate.model_copy(update={"proof": proof})})
    findings = check_plan(other, ServeDecision.model_validate(other.decision))
    (rate,) = (finding for finding in findings if finding.rule == "serve.unit_rate")
    assert rate.ok
    assert not rate.skipped


@pytest.mark.parametrize("target", ["vllm", "sglang"])
def test_launchers_refuse_one_side_of_the_layers(apart: tuple[Envelope, ServeDecision], target: str) -> None:
    with pytest.raises(PlannerError, match="starts no such role") as refused:
        emit(*apart, target)
    assert "options.modes" in str(refused.value)


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ({"options.modes": ["attention_ffn"]}, "attention-ffn"),
        ({"options.micro_batches": [0]}, "micro_batches"),
        ({"options.ffn_gpus": []}, "ffn_gpus"),
        ({"options.attention_ffn": True}, "attention_ffn"),
    ],
)
def test_options_that_make_no_sense_are_refused_by_name(edits: dict[str, Any], message: str) -> None:
    with pytest.raises(PlannerError) as refused:
        solved(edits)
    assert message in str(refused.value)


def test_a_ratio_that_fills_no_domain_is_an_answer_not_a_crash() -> None:
    with pytest.raises(Infeasible):
        solved({"options.modes": ["attention-ffn"], "options.attention_gpus": [3], "options.ffn_gpus": [3]})


def test_two_micro_batches_on_every_device_hide_exchanges() -> None:
    node, ideal = find_node("h800"), load_calibration("none").efficiencies
    pool = Pool("h800", node, 16)
    costs = Costs(
        find_model("deepseek-ai/DeepSeek-V3"), Roofline(node.accelerator, pool.topology(), ideal), EngineOverheads()
    )
    pool_costs = PoolCosts(0, pool, costs, 0.9 * node.accelerator.memory_bytes, Port.of(pool, ideal))
    whole, halves = (best_unsplit(pool_costs, 4096.0, 0.05, 4096.0, (parts,)) for parts in (1, 2))
    assert whole is not None
    assert halves is not None
    assert halves.tokens_per_s_per_gpu > whole.tokens_per_s_per_gpu
    assert halves.step_s <= 0.05
    slower = best_unsplit(replace(pool_costs, memory_bytes=pool_costs.memory_bytes / 2.0), 4096.0, 0.05, 4096.0, (2,))
    assert slower is None or slower.tokens_per_s_per_gpu <= halves.tokens_per_s_per_gpu


TWO_POOLS: dict[str, Any] = {
    **MOE,
    "cluster.pools.0": {"gpu": "h100", "name": "fast", "gpus": 8, "price": "4USD/h"},
    "cluster.pools.1": {"gpu": "h20", "name": "wide", "gpus": 8, "price": "1USD/h"},
    "workloads.0.slo": {"ttft": "2s", "tpot": "40ms"},
    "workloads.0.load": {"rate": "4/s"},
    "objective": {"minimize": "cost"},
}


def test_sides_may_stand_on_different_hardware() -> None:
    only = {"options.modes": ["attention-ffn"], "options.attention_gpus": [2], "options.ffn_gpus": [4]}
    setting = prepare(small(copy.deepcopy(TWO_POOLS) | only))
    candidates = list_candidates(setting, setting.targets, Tally())
    pairs = {(candidate.pool, candidate.ffn.pool_costs.index) for candidate in candidates if candidate.ffn is not None}
    assert pairs >= {(0, 1), (1, 0)}
    plan = solve(small(copy.deepcopy(TWO_POOLS) | only))
    decision = ServeDecision.model_validate(plan.decision)
    assert not broken_rules(plan)
    sides = {role.function: role for role in decision.roles}
    for block in decision.placement:
        (role,) = (candidate for candidate in decision.roles if candidate.name == block.role)
        assert block.pool == role.pool
    assert {sides["attention"].pool, sides["ffn"].pool} <= {"fast", "wide"}


def test_a_link_that_is_stated_between_pools_carries_no_activations() -> None:
    link = {"cluster.links": [{"pools": ["fast", "wide"], "bandwidth": "100GB/s"}], "options.modes": ["attention-ffn"]}
    setting = prepare(small(copy.deepcopy(TWO_POOLS) | link))
    candidates = list_candidates(setting, setting.targets, Tally())
    assert all(
        candidate.ffn.pool_costs.index == candidate.pool for candidate in candidates if candidate.ffn is not None
    )


@pytest.mark.parametrize("wide_gpus", [3, 4, 8])
def test_each_side_stands_on_the_pool_that_makes_the_plan_cheapest(wide_gpus: int) -> None:
    """At a small load one prefill GPU, two for attention and four for feed-forward do: every choice of pools by hand.

    Two and four GPUs are no power of two, so the sides never share a pool.
    """
    edits = copy.deepcopy(TWO_POOLS) | {
        "options.modes": ["attention-ffn"], "options.attention_gpus": [2], "options.ffn_gpus": [4],
        "options.micro_batches": [2], "options.max_gpus_per_instance": 6,
        "workloads.0.slo": {"ttft": "20s", "tpot": "2s"}, "workloads.0.load": {"rate": "0.1/s"},
    }  # fmt: skip
    edits["cluster.pools.1"]["gpus"] = wide_gpus
    price, gpus, sizes = (4.0, 1.0), (8, wide_gpus), (1, 2, 4)
    costs = {}
    for pools in itertools.product((0, 1), repeat=3):  # of prefill, attention and feed-forward
        taken = [sum(size for size, pool in zip(sizes, pools, strict=True) if pool == p) for p in (0, 1)]
        if pools[1] != pools[2] and all(used <= room for used, room in zip(taken, gpus, strict=True)):
            costs[pools] = sum(used * each for used, each in zip(taken, price, strict=True))
    plan = solve(small(edits))
    assert objective_of(plan) == pytest.approx(min(costs.values()))
    roles = {role.function: role for role in ServeDecision.model_validate(plan.decision).roles}
    named = tuple(("fast", "wide").index(roles[function].pool) for function in ("prefill", "attention", "ffn"))
    assert costs[named] == min(costs.values())
    assert not broken_rules(plan)


def test_dearer_hardware_for_one_side_is_taken_where_it_saves_more_than_it_costs() -> None:
    costs = []
    for pools in ([0], [0, 1]):
        edits = copy.deepcopy(TWO_POOLS)
        if 1 not in pools:
            edits.pop("cluster.pools.1")
        costs.append(objective_of(solve(small(edits))))
    assert costs[1] <= costs[0] * (1.0 + 1e-9)
