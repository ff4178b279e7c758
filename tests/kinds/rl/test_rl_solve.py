"""RL problems solved: certified, equal to trying everything, checked without a fault, and refused with a hint."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.api import solve
from planner.check import check_plan
from planner.errors import Infeasible, PlannerError
from planner.kinds.rl.check import check
from planner.kinds.rl.decision import RlDecision
from planner.kinds.rl.formulate import formulate
from planner.kinds.rl.setting import read_setting
from planner.load.problems import load_problem
from planner.plan.schema import Envelope
from planner.rl.curves import Curves
from planner.rl.evaluate import evaluate
from planner.rl.plan import GenerationGroup, RlPlan
from planner.rl.search.trainings import training_choices

CURVE = {"pool": "a", "tp": 1, "step_s": 0.02, "sequence_s": 4e-4, "token_s": 1e-7, "prefill_tokens_per_s": 2e4}
GENERATION = [
    {**CURVE, "max_running": 8, "kv_tokens": 40_000},
    {**CURVE, "tp": 2, "step_s": 0.012, "sequence_s": 2e-4, "max_running": 16, "kv_tokens": 100_000},
]
TRAINING = [
    {"pool": "a", "tp": 1, "train_tokens_per_s": 900, "forward_tokens_per_s": 3000, "micro_tokens": 4096, "min_dp": 2},
    {"pool": "a", "tp": 2, "pp": 2, "train_tokens_per_s": 3300, "forward_tokens_per_s": 11000, "micro_tokens": 4096},
]


def problem(**changes: Any) -> dict[str, Any]:  # noqa: ANN401
    """A small problem with measured curves; `options.x` and `cluster` may be changed."""
    document: dict[str, Any] = {
        "schema": "planner.problem/1",
        "kind": "rl",
        "models": {"policy": {"name": "Qwen/Qwen2.5-7B"}},
        "cluster": {"pools": [{"gpu": "h800_sxm", "name": "a", "nodes": 1, "usd_per_gpu_hour": 2.0}]},
        "workloads": [{"input_tokens": 200, "output_tokens": {"mean": 800, "cv": 1.0}}],
        "objective": {"minimize": "iteration_time"},
        "options": {
            "algorithm": "grpo",
            "prompts": 8,
            "samples_per_prompt": 4,
            "minibatches": 2,
            "max_staleness": 1,
            "costs": {"generation": GENERATION, "training": TRAINING},
        },
    }
    document["options"] |= changes.pop("options", {})
    return document | changes


def written(tmp_path: Any, document: dict[str, Any]) -> Any:  # noqa: ANN401
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def solved(tmp_path: Any, document: dict[str, Any]) -> tuple[Envelope, RlDecision]:  # noqa: ANN401
    envelope = solve(written(tmp_path, document))
    decision = RlDecision.model_validate(envelope.decision)
    wrong = [finding for finding in check_plan(envelope, decision) if not finding.ok]
    assert not wrong
    return envelope, decision


def test_roles_on_whole_nodes_are_planned_said_and_checked(tmp_path: Any) -> None:  # noqa: ANN401
    cluster = {"pools": [{"gpu": "h800_sxm", "name": "a", "nodes": 2, "gpus_per_node": 3}]}
    options = {"arrangements": ["disaggregated"], "prompts": 9, "generation_tp": [1]}
    free, freely = solved(tmp_path, problem(cluster=cluster, options=options))
    asked = problem(cluster=cluster, options={**options, "whole_nodes": True})
    envelope, decision = solved(tmp_path, asked)
    assert [role.replicas * role.parallelism.devices for role in decision.roles] == [3, 3]
    assert (envelope.certificate.objective.value or 0.0) > (free.certificate.objective.value or 0.0)
    assert envelope.certificate.axes["GPUs of a role"]
    broken = [finding for finding in check(envelope, freely) if not finding.ok]
    assert "rl.whole_nodes" in {finding.rule for finding in broken}


@pytest.mark.parametrize("goal", [{"minimize": "iteration_time"}, {"minimize": "cost"}])
@pytest.mark.parametrize("tools", [None, {"calls": 2, "wait": "5s", "observation_tokens": 50}])
def test_the_plan_equals_trying_everything(tmp_path: Any, goal: Any, tools: Any) -> None:  # noqa: ANN401
    document = problem(objective=goal, options={"tools": tools} if tools else {})
    envelope, _ = solved(tmp_path, document)
    curves = formulate(read_setting(load_problem(written(tmp_path, document)))).problem
    best = np.inf
    for option in curves.generation:
        for replicas in range(1, 8 // option.gpus + 1):
            for choice in training_choices(curves):
                for mode in curves.modes:
                    evaluation = evaluate(curves, RlPlan(mode, (GenerationGroup(option, replicas),), choice))
                    best = min(best, evaluation.objective if evaluation.feasible else np.inf)
    assert envelope.certificate.status == "optimal"
    assert envelope.certificate.objective.value == pytest.approx(best, rel=1e-9)


def test_hybrid_plans_share_some_gpus(tmp_path: Any) -> None:  # noqa: ANN401
    options = {"arrangements": ["hybrid"], "max_staleness": 0}
    envelope, decision = solved(tmp_path, problem(options=options))
    assert decision.arrangement in ("hybrid", "colocated")
    turns, _ = solved(tmp_path, problem(options={**options, "arrangements": ["colocated"]}))
    hybrid, apart = envelope.certificate.objective.value, turns.certificate.objective.value
    assert hybrid is not None
    assert apart is not None
    assert hybrid <= apart + 2.0  # a hybrid of all GPUs is colocated, but for the sending of weights


def test_throughput_per_dollar_and_cost_of_an_iteration_have_the_same_best_plan(tmp_path: Any) -> None:  # noqa: ANN401
    cheap, cheap_decision = solved(tmp_path, problem(objective={"minimize": "cost"}))
    rich, rich_decision = solved(tmp_path, problem(objective={"maximize": "tokens_per_usd"}))
    assert cheap_decision == rich_decision
    assert rich.certificate.bound is not None
    assert rich.certificate.objective.sense == "maximize"
    assert rich.certificate.bound >= (rich.certificate.objective.value or 0.0) * (1 - 1e-9)
    assert cheap.certificate.objective.metric == "usd_per_iteration"


def test_the_same_seed_gives_the_same_plan_and_another_one_other_lengths(tmp_path: Any) -> None:  # noqa: ANN401
    first, _ = solved(tmp_path, problem())
    again, _ = solved(tmp_path, problem())
    other, _ = solved(tmp_path, problem(seed=1))
    assert first == again
    assert other.certificate.objective.value != first.certificate.objective.value


def test_where_lengths_of_samples_end_is_assumed_in_words(tmp_path: Any) -> None:  # noqa: ANN401
    envelope, _ = solved(tmp_path, problem())
    told = [text for text in envelope.assumptions if "are cut at" in text]
    assert told == ["log-normal lengths of outputs are cut at mean x (1 + 4 cv), 4000 tokens"]


def test_a_70b_actor_with_a_critic_on_128_gpus_is_certified_with_roofline_costs(tmp_path: Any) -> None:  # noqa: ANN401
    document = {
        "kind": "rl",
        "models": {"actor": {"name": "meta-llama/Llama-3.1-70B"}, "critic": {"name": "Qwen/Qwen2.5-7B"}},
        "cluster": {"pools": [{"gpu": "h100_sxm", "nodes": 16}]},
        "workloads": [{"model": "actor", "input_tokens": 512, "output_tokens": {"mean": 1500, "cv": 0.8}}],
        "objective": {"minimize": "iteration_time"},
        "options": {"algorithm": "ppo", "reference": "actor", "prompts": 1024, "minibatches": 4, "max_staleness": 1},
    }
    envelope, decision = solved(tmp_path, document)
    assert envelope.certificate.status == "optimal"
    assert {role.function for role in decision.roles} == {"rollout", "actor", "critic", "reference"}
    assert envelope.evidence.basis == {"analytical": 1.0}
    others: Any = envelope.certificate.next_best
    assert all(row["loss"] is None or row["loss"] >= 0 for row in others)


BAD = {
    "a batch that minibatches do not divide": (
        {"options": {"minibatches": 3}},
        "32 samples do not divide into 3 minibatches",
        "write `minibatches: 2`",
    ),
    "more samples than can be simulated": (
        {"options": {"samples_per_prompt": 480_000_000_000_000}},
        "2097152 can be",
        "write fewer of them",
    ),
    "asynchronous without staleness": (
        {"options": {"max_staleness": 0, "synchrony": ["asynchronous"]}},
        "a staleness of 0",
        "max_staleness: 1",
    ),
    "turns that run ahead": (
        {"options": {"arrangements": ["colocated"], "synchrony": ["asynchronous"]}},
        "cannot stream or run ahead",
        "add `disaggregated`",
    ),
    "lengths beyond every replica": (
        {"workloads": [{"input_tokens": 200, "output_tokens": 120_000}]},
        "120200 tokens, the KV cache of any replica holds 100000",
        "max_output_tokens: 99800",
    ),
    "lengths beyond the context of the model": (
        {"workloads": [{"input_tokens": 200, "output_tokens": 200_000}]},
        "samples have up to 200200 tokens, and Qwen/Qwen2.5-7B, the actor, takes 131072",
        "max_output_tokens: 130872",
    ),
    "a critic where there is none": (
        {"options": {"critic": "policy"}},
        "`grpo` has no critic",
        "leave `critic` out",
    ),
    "a limit on requests": (
        {"workloads": [{"input_tokens": 200, "output_tokens": 800, "slo": {"ttft": "1s"}}]},
        "do not read `workloads.0.slo.ttft`",
        "max_iteration",
    ),
    "a cap on dollars an hour": ({"limits": {"usd_per_hour": 9.0}}, "`limits.usd_per_hour`", "minimize: cost"),
    "PPO without a critic": ({"options": {"algorithm": "ppo"}}, "no model is called `critic`", "add `critic:`"),
    "two curves of the same replica": (
        {"options": {"costs": {"generation": [*GENERATION, GENERATION[0]], "training": TRAINING}}},
        "two curves of tp 1 pp 1 on `a`",
        "keep the one",
    ),
    "a curve of an unknown pool": (
        {"options": {"costs": {"generation": [{**GENERATION[0], "pool": "b"}], "training": TRAINING}}},
        "no pool is called `b`",
        "the pools are a",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_problems_are_refused_with_the_nearest_value_that_works(tmp_path: Any, case: str) -> None:  # noqa: ANN401
    changes, what, hint = BAD[case]
    with pytest.raises(PlannerError) as caught:
        solve(written(tmp_path, problem(**changes)))  # type: ignore[arg-type]  # one keyword each
    assert what in caught.value.what
    assert hint in caught.value.hint


def test_pools_without_a_network_are_refused(tmp_path: Any) -> None:  # noqa: ANN401
    pools = [{"gpu": "h800_sxm", "name": name, "nodes": 1} for name in ("a", "b")]
    with pytest.raises(PlannerError) as caught:
        solve(written(tmp_path, problem(cluster={"pools": pools})))
    assert "pools `a` and `b` have no network in common" in caught.value.what
    assert "links: [{pools: [a, b]" in caught.value.hint


def test_a_model_that_fits_no_replica_is_named_with_gpus_that_would_hold_it(tmp_path: Any) -> None:  # noqa: ANN401
    document = problem(models={"policy": {"name": "meta-llama/Llama-3.1-405B"}})
    document["options"]["costs"] = {}
    with pytest.raises(PlannerError) as caught:
        solve(written(tmp_path, document))
    assert "fits no replica of any pool" in caught.value.what
    assert "at least 16 GPUs" in caught.value.hint


def test_a_deadline_that_nothing_meets_names_the_nearest(tmp_path: Any) -> None:  # noqa: ANN401
    with pytest.raises(Infeasible) as caught:
        solve(written(tmp_path, problem(options={"max_iteration": "1s"})))
    assert caught.value.conflict[0]["limit"] == "max_iteration <= 1 s"
    assert float(caught.value.conflict[0]["nearest"].removesuffix(" s")) > 1.0


def test_samples_too_long_to_train_on_are_named_with_a_length_that_is_not(tmp_path: Any) -> None:  # noqa: ANN401
    cluster = {"pools": [{"gpu": "h800_sxm", "gpus": 8}]}
    models = {"policy": {"name": "Qwen/Qwen2.5-32B"}}
    document = problem(models=models, cluster=cluster, workloads=[{"input_tokens": 200, "output_tokens": 120_000}])
    document["options"] |= {"costs": {}, "prompts": 4, "minibatches": 1}
    with pytest.raises(Infeasible) as caught:
        solve(written(tmp_path, document))
    conflict = caught.value.conflict[0]
    assert conflict["limit"] == "training on samples of 120200 tokens"
    document["options"]["max_output_tokens"] = int(conflict["nearest"].removeprefix("max_output_tokens "))
    assert solve(written(tmp_path, document)).certificate.status == "optimal"


def test_too_few_gpus_are_told_with_what_training_takes_where_only_a_critic_apart_leaves_room(tmp_path: Any) -> None:  # noqa: ANN401
    document = problem(
        models={"actor": {"name": "meta-llama/Llama-3.1-70B"}, "critic": {"name": "Qwen/Qwen2.5-7B"}},
        cluster={"pools": [{"gpu": "h100_sxm", "nodes": 16}]},
        workloads=[{"model": "actor", "input_tokens": 512, "output_tokens": {"mean": 1500, "cv": 0.8}}],
    )
    document["options"] |= {"algorithm": "ppo", "reference": "actor", "reward": "critic", "prompts": 1024, "costs": {}}
    document["options"] |= {"samples_per_prompt": 1, "minibatches": 4, "critic_gpus": ["actor", "own"]}
    document["options"] |= {"fused_training": True, "training_pp": [1]}
    with pytest.raises(Infeasible) as caught:
        solve(written(tmp_path, document))
    limit = "GPUs of the pools: training takes 128 or more, generation 2 or more"
    assert caught.value.conflict == [{"limit": limit, "nearest": ""}]


WEIGHTS_BYTES = 2 * 7_615_616_512
KV_TOKEN_BYTES = 28 * 2 * 4 * 128 * 2
NIC, NVLINK = 50e9, 200e9
"""Bytes a second of a GPU of an H800 node of 8: one adapter of 400 Gb/s, NVLink one way."""


def curves_of(tmp_path: Path, **options: Any) -> Curves:  # noqa: ANN401
    """Two nodes `a` and one node `b`, joined by 10 GB/s after 1 ms; all replicas are measured."""
    pool = {"gpu": "h800_sxm", "usd_per_gpu_hour": 2.0}
    link = {"pools": ["b", "a"], "bandwidth_bytes_per_s": 10e9, "latency_s": 1e-3}
    cluster = {"pools": [{**pool, "name": "a", "nodes": 2}, {**pool, "name": "b", "nodes": 1}], "links": [link]}
    costs = {
        "generation": [*GENERATION, {**GENERATION[0], "pool": "b"}],
        "training": [*TRAINING, {**TRAINING[0], "pool": "b"}],
    }
    document = problem(cluster=cluster, options={"costs": costs, **options})
    return formulate(read_setting(load_problem(written(tmp_path, document)))).curves


def test_weights_take_the_slowest_network_between_pools(tmp_path: Path) -> None:
    curves = curves_of(tmp_path)
    hosts_s = 339 * 15 / 18_867  # while the bytes of other tensors are on the network
    linked_s = 1.0 + 1e-3 + max(WEIGHTS_BYTES / 10e9, hosts_s)
    assert curves.weight_sync_s == pytest.approx(
        {
            ("a", "a"): 1.0 + max(WEIGHTS_BYTES / NIC, hosts_s),
            ("b", "b"): 1.0 + max(WEIGHTS_BYTES / NVLINK, hosts_s),
            ("a", "b"): linked_s,
            ("b", "a"): linked_s,
        }
    )
    assert curves.switch_s == pytest.approx(1.0 + max(WEIGHTS_BYTES / 8 / NIC, hosts_s))
    assert (curves.move_s, curves.move_token_s) == pytest.approx((0.1, KV_TOKEN_BYTES / NIC))
    assert set(curves_of(tmp_path, weight_sync_s=7.0).weight_sync_s.values()) == {7.0}


def test_over_sampling_generates_more_than_it_trains_on(tmp_path: Path) -> None:
    workloads = [{"input_tokens": {"low": 100, "high": 300}, "output_tokens": {"mean": 800, "cv": 1.0}}]
    options = {"over_sampling": 1.15, "iterations": 3, "max_output_tokens": 900}
    document = problem(workloads=workloads, options=options)
    formulated = formulate(read_setting(load_problem(written(tmp_path, document)))).problem
    assert [batch.size for batch in formulated.batches] == [37] * 3
    assert formulated.samples == 32
    first = formulated.batches[0].prompt_tokens_N.tolist()
    assert first == [first[sample // 4 * 4] for sample in range(37)]
    assert len(set(first[::4])) > 5
    assert max(int(np.max(batch.output_tokens_N)) for batch in formulated.batches) == 900
    plain = formulate(read_setting(load_problem(written(tmp_path, problem())))).problem
    assert (plain.samples, {batch.size for batch in plain.batches}) == (None, {32})
    assert [(mode.placement, mode.sync, mode.staleness) for mode in plain.modes if mode.placement != "hybrid"] == [
        ("colocated", "sync", 0),
        ("disaggregated", "sync", 0),
        ("disaggregated", "stream_sync", 0),
        ("disaggregated", "k_step_async", 1),
    ]
