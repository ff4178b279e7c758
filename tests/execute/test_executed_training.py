"""Training steps executed on the CPU: what is predicted of them, and that both sides hold the same work."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the executor needs torch: pip install 'planner[gpu]'")

from planner.execute.cases import Cut
from planner.execute.execution import Options, execute_plan
from planner.execute.verdict import Execution, StepVerdict

BenchPlan = Callable[..., Path]
TWO_STAGES = [{"num_layers": 2, "stages": 2}]


def executed(plan: Path, num_processes: int = 1) -> Execution:
    found = execute_plan(plan, Options(device="cpu", cut=Cut(), step_budget_s=0.05, num_processes=num_processes))
    assert not found.faults, found.faults
    return found


def named(found: Execution, kind: str, rank: int = 0) -> StepVerdict:
    (step,) = [step for step in found.steps if (step.step, step.rank) == (kind, rank)]
    return step


def training(bench_plan: BenchPlan, degrees: dict[str, int], model: str = "tests/dense", **decision: Any) -> Path:  # noqa: ANN401
    decision = {"stage_runs": None, "micro_batch": 1, "num_micro_batches": 4, "schedule": "1f1b", **decision}
    return bench_plan("train", {"job": degrees}, model, options={"sequence_tokens": 64}, decision=decision)


def test_layers_that_are_recomputed_run_again_on_both_sides(bench_plan: BenchPlan) -> None:
    runs = [{"num_layers": 4, "recompute": {"granularity": "full", "num_layers": 2}}]
    step = named(executed(training(bench_plan, {"tp": 1}, stage_runs=runs)), "train")
    again = {name: row for name, row in step.operators.items() if name.endswith("_recompute")}
    assert {"qkv_recompute", "prefill_attention_recompute", "ffn_down_recompute", "norm_recompute"} <= set(again)
    for name, row in again.items():
        once = step.operators[name.removesuffix("_recompute")]
        assert row.count == once.count / 2
        assert row.predicted_s == pytest.approx(once.predicted_s / 2)
        assert row.measured_s is not None
        assert row.measured_s > 0
    assert "embedding_recompute" not in step.operators


@pytest.mark.parametrize(
    ("model", "modules", "names"),
    [
        ("tests/dense", ["core_attention", "layernorm"], {"prefill_attention_recompute": 4, "norm_recompute": 8}),
        ("tests/dense", ["mlp"], {"ffn_up_recompute": 4, "ffn_activation_recompute": 4, "ffn_down_recompute": 4}),
        ("tests/moe", ["moe_activation"], {"expert_activation_recompute": 2}),
        ("tests/moe", ["moe"], {"experts_recompute": 2, "router_recompute": 2, "expert_combine_recompute": 2,
                                "router_top_k_recompute": 2}),
    ],
)  # fmt: skip
def test_modules_that_are_recomputed_run_again_and_nothing_else(
    model: str, modules: list[str], names: dict[str, int], bench_plan: BenchPlan
) -> None:
    layers = 4 if model == "tests/dense" else 2
    runs = [{"num_layers": layers, "recompute": {"granularity": "selective", "modules": modules}}]
    step = named(executed(training(bench_plan, {"tp": 1}, model, stage_runs=runs)), "train")
    again = {name: row for name, row in step.operators.items() if name.endswith("_recompute")}
    assert {name: row.count for name, row in again.items()} == names
    assert all(row.measured_s is not None and row.measured_s > 0 for row in again.values())


def test_gradients_and_optimizer_are_timed_and_predicted(bench_plan: BenchPlan) -> None:
    found = executed(training(bench_plan, {"tp": 1}))
    step, update = named(found, "train"), named(found, "optimizer")
    back = {name: row for name, row in step.operators.items() if name.endswith("_backward")}
    assert {"qkv_backward", "prefill_attention_backward", "ffn_up_backward", "norm_backward"} <= set(back)
    assert all(row.measured_s is not None and row.measured_s > 0 for row in back.values())
    timed_s = sum(row.measured_s or 0.0 for row in step.operators.values())
    assert timed_s < 1.5 * step.measured_s
    assert update.claimed
    assert set(update.operators) == {"optimizer"}
    parameters = 2 * 2048 * 256 + 4 * (256 * 512 + 256 * 256 + 3 * 256 * 768 + 2 * 32 + 2 * 256)
    assert update.predicted_s == pytest.approx(parameters * 28 / 10e9, rel=0.5)  # at the 10 GB/s of the machine


def test_zero_leaves_each_replica_its_share_of_the_update(bench_plan: BenchPlan) -> None:
    whole = named(executed(training(bench_plan, {"dp": 2}, zero_stage=0)), "optimizer")
    share = named(executed(training(bench_plan, {"dp": 2}, zero_stage=1)), "optimizer")
    assert share.predicted_s == pytest.approx(whole.predicted_s / 2, rel=0.01)
    assert share.measured_s < whole.measured_s


@pytest.mark.parametrize(
    ("degrees", "schedule", "runs", "batches"),
    [
        ({"pp": 2}, "1f1b", TWO_STAGES, 4),
        ({"pp": 2}, "1f1b", TWO_STAGES, 1),
        ({"pp": 2, "vpp": 2}, "interleaved", [{"num_layers": 1, "stages": 4}], 4),
    ],
)
def test_a_pipeline_that_runs_whole_runs_its_schedule(
    degrees: dict[str, int], schedule: str, runs: list[dict[str, int]], batches: int, bench_plan: BenchPlan
) -> None:
    plan = training(bench_plan, degrees, schedule=schedule, stage_runs=runs, num_micro_batches=batches)
    found = executed(plan, 2)
    first, last = (named(found, "train", rank) for rank in (0, 1))
    for step in (first, last):
        assert step.executed_share == pytest.approx(1.0)
        assert step.operators["pipeline"].predicted_s > 0
        assert ("gradient_accumulation" in step.operators) == (batches > 1)
        assert step.operators["qkv"].count == 2 * batches
    bubble = {step.rank: step.operators["pipeline"].predicted_s / step.predicted_s for step in (first, last)}
    assert max(bubble.values()) < 0.7
    assert first.measured_s == pytest.approx(last.measured_s, rel=0.5)


def test_a_context_parallel_stage_has_its_part_of_the_tokens(bench_plan: BenchPlan) -> None:
    whole = named(executed(training(bench_plan, {"cp": 1})), "train")
    alone = named(executed(training(bench_plan, {"cp": 2})), "train")
    both = named(executed(training(bench_plan, {"cp": 2}), 2), "train")
    assert {"context_all_gather", "context_all_gather_backward"} <= set(alone.absent)
    assert {"context_all_gather", "context_all_gather_backward"} <= set(both.operators)
    assert both.operators["qkv"].predicted_s < 0.7 * whole.operators["qkv"].predicted_s
    attention = "prefill_attention"
    assert both.operators[attention].count == whole.operators[attention].count
    assert alone.operators[attention].predicted_s <= 0.6 * whole.operators[attention].predicted_s
    assert both.claimed
