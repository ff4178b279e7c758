"""CUDA graphs in training plans: where they are used, that they are priced and emitted, what they do not go with."""

from typing import Any

import pytest
from train_problems import every_plan, job, problem

from planner.api import solve
from planner.check import check_plan
from planner.emit.registry import emit
from planner.errors import PlannerError
from planner.kinds.train.decision import TrainDecision
from planner.kinds.train.proof.reprice import repriced
from planner.kinds.train.search.one_pool import OnePoolSearch
from planner.plan.schema import Envelope
from planner.progress import Limits

LLAMA, MOE = "meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B"
SEARCH = {"cp": 1, "tp": [1, 2], "pp": [1, 2], "vpp": [1, 2], "micro_batch": 1, "zero_stage": 1}


def _problem(
    engine: str | None = "megatron-bridge",
    gpu: str = "gb200_nvl72",
    model: str = LLAMA,
    **options: Any,  # noqa: ANN401
) -> dict[str, Any]:
    chosen = {"search": SEARCH, "global_batch": 64, "sequence_tokens": 8192, **options}
    data = problem(model, **chosen)
    data["cluster"] = {"pools": [{"gpu": gpu, "gpus": 8}]}
    return data if engine is None else {**data, "engine": {"name": engine}}


def _planned(data: dict[str, Any]) -> tuple[Envelope, TrainDecision]:
    plan = solve(data)
    return plan, TrainDecision.model_validate(plan.decision)


@pytest.mark.parametrize(
    ("data", "used"),
    [
        (_problem(), ("attn", "mlp")),
        (_problem("megatron-lm"), ("attn", "mlp")),
        (_problem(None), ()),
        (_problem("torchtitan", search={**SEARCH, "zero_stage": [2, 3]}), ()),
        (_problem(gpu="h100_sxm"), ()),
        (_problem(gpu="h100_sxm", cuda_graphs=True), ("attn", "mlp")),
        (_problem(gpu="h100_sxm", cuda_graphs=["full_iteration"]), ("full_iteration",)),
        (_problem(cuda_graphs=["mlp", "attn"]), ("attn", "mlp")),
        (_problem(cuda_graphs=False), ()),
    ],
)
def test_graphs_are_used_where_the_named_engine_has_them(data: dict[str, Any], used: tuple[str, ...]) -> None:
    assert _planned(data)[1].cuda_graphs == used


@pytest.mark.parametrize(
    ("model", "scopes", "told"),
    [
        (MOE, ["full_iteration"], "captures experts"),
        (MOE, ["moe"], "captures experts"),
        (MOE, ["moe_preprocess"], "with `moe_router` alone"),
        (MOE, ["mlp"], "has nothing that `mlp` captures"),
        (LLAMA, ["moe_router"], "has nothing that `moe_router` captures"),
        (LLAMA, ["full_iteration", "attn"], "captures all of a step"),
    ],
)
def test_scopes_that_capture_nothing_or_what_changes_are_refused(model: str, scopes: list[str], told: str) -> None:
    with pytest.raises(PlannerError, match=told) as raised:
        solve(_problem(model=model, cuda_graphs=scopes))
    assert raised.value.where == "problem: options.cuda_graphs"


def test_experts_padded_to_a_capacity_are_captured_whole_and_emitted_so() -> None:
    experts = {"capacity": 1.0, "padded": True}
    chosen: dict[str, Any] = {"search": {**SEARCH, "ep": 4}, "experts": experts, "cuda_graphs": ["full_iteration"]}
    plan, decision = _planned(_problem("megatron-lm", model=MOE, dispatcher="alltoall", **chosen))
    again = repriced(plan, decision)
    assert not isinstance(again, str)
    assert again.step_s == pytest.approx(plan.predictions[0].value, rel=1e-9)
    script = emit(plan, decision, "megatron-lm")["launch.sh"]
    assert "--cuda-graph-impl local" in script
    assert "--cuda-graph-scope full_iteration" in script


def test_plans_with_graphs_are_faster_and_the_best_of_all_with_them() -> None:
    made = job(_problem("megatron-lm", global_batch=16))
    best = OnePoolSearch(made, Limits()).run().best
    plain = OnePoolSearch(job(_problem("megatron-lm", global_batch=16, cuda_graphs=False)), Limits()).run().best
    assert best is not None
    assert plain is not None
    assert best.step_s < plain.step_s
    plans = [plan for plan in every_plan(made) if not plan.choice.full_layers]
    again = [plan for plan in plans if plan.choice.mode.recompute.granularity != "full"]
    assert best.step_s == pytest.approx(min(plan.step_s for plan in again), rel=1e-9)


@pytest.mark.parametrize("model", [LLAMA, MOE])
def test_graphs_are_emitted_and_priced_again_as_planned(model: str) -> None:
    search = {**SEARCH, "ep": 4} if model == MOE else SEARCH
    plan, decision = _planned(_problem("megatron-lm", model=model, search=search))
    again = repriced(plan, decision)
    assert not isinstance(again, str)
    assert again.step_s == pytest.approx(plan.predictions[0].value, rel=1e-9)
    script = emit(plan, decision, "megatron-lm")["launch.sh"]
    parts = "attn moe_router moe_preprocess" if model == MOE else "attn mlp"
    assert "--cuda-graph-impl transformer_engine" in script
    assert f"--cuda-graph-scope {parts}" in script
    assert "--te-rng-tracker" in script
    assert "NCCL_GRAPH_REGISTER=0" in script
    overrides = emit(plan, decision, "megatron-bridge")["overrides.yaml"]
    assert "te_rng_tracker: true" in overrides
    assert "cuda_graph_impl: transformer_engine" in overrides


def test_a_plan_without_its_graphs_takes_longer_and_one_that_recomputes_whole_layers_is_refused() -> None:
    plan, decision = _planned(_problem("megatron-lm", global_batch=16))
    slower = repriced(plan, decision.model_copy(update={"cuda_graphs": ()}))
    assert not isinstance(slower, str)
    assert slower.step_s > plan.predictions[0].value
    run = decision.stage_runs[0]
    whole = {"granularity": "full", "num_layers": run.num_layers}
    wrong = TrainDecision.model_validate(
        decision.model_dump() | {"stage_runs": [run.model_dump() | {"recompute": whole}, *decision.stage_runs[1:]]}
    )
    failing = {finding.rule for finding in check_plan(plan, wrong) if not finding.ok}
    assert "train.graphs" in failing


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"search": {**SEARCH, "recompute": "full"}}, "whole layers"),
        ({"search": {**SEARCH, "offload": ["activations"]}}, "moved to the host"),
        ({"lengths": [{"tokens": 4096, "share": 1}, {"tokens": 8192, "share": 1}]}, "several lengths"),
        ({"task": "sft"}, "packed"),
    ],
)
def test_what_graphs_do_not_go_with_leaves_them_out_or_is_refused(options: dict[str, Any], told: str) -> None:
    assert not job(_problem(**options)).cuda_graphs
    with pytest.raises(PlannerError, match=told) as raised:
        solve(_problem(cuda_graphs=True, **options))
    assert raised.value.where == "problem: options.cuda_graphs"


def test_an_engine_that_captures_nothing_is_named() -> None:
    with pytest.raises(PlannerError, match="torchtitan, which captures none"):
        solve(_problem("torchtitan", cuda_graphs=True, search={**SEARCH, "zero_stage": [2, 3]}))


def test_older_plans_say_true_for_the_usual_parts() -> None:
    plan, decision = _planned(_problem("megatron-lm", global_batch=16))
    older = TrainDecision.model_validate({**decision.model_dump(), "cuda_graphs": True})
    assert set(decision.cuda_graphs) <= set(older.cuda_graphs)
    again, before = (repriced(plan, each) for each in (older, decision))
    assert not isinstance(again, str)
    assert not isinstance(before, str)
    assert again.step_s == pytest.approx(before.step_s, rel=1e-9)  # parts that the model has not cost nothing
    assert TrainDecision.model_validate({**decision.model_dump(), "cuda_graphs": None}).cuda_graphs == ()
