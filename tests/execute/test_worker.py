"""What ranks measure of their steps, and that predictions hold the same work: training, pipelines, context parts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rank_environment import HAS_TORCH
from worker_cases import LEAST_REPEATS, PASSES, Verdicts, WorkerCase, verdicts

from planner.costs.rates.calibration import load_calibration
from planner.errors import PlannerError
from planner.execute.shards.cases import left_out, role_steps
from planner.plan.reader import read_plan

pytestmark = pytest.mark.skipif(not HAS_TORCH, reason="the executor needs torch: the extra `gpu`")
BenchPlan = Callable[..., Path]
# Of a step of ranks together: to name operators, to warm up, timed whole, timed by operator.
RUNS = 1 + 2 + 2 * LEAST_REPEATS + PASSES
_RESULTS: dict[int, dict[str, Verdicts]] = {}


def _training(
    name: str,
    degrees: dict[str, int],
    runs: object = None,
    *,
    model: str = "tests/dense",
    **more: Any,  # noqa: ANN401
) -> WorkerCase:
    alone = more.pop("alone", True)
    decision = {"stage_runs": runs, "micro_batch": 1, "num_micro_batches": 4, "schedule": "1f1b", **more}
    return WorkerCase(name, "train", "job", degrees, model, decision, alone)


def _recomputing(
    name: str,
    modules: list[str],
    model: str = "tests/dense",
    degrees: dict[str, int] | None = None,
    *,
    alone: bool = True,
) -> WorkerCase:
    again = {"granularity": "selective", "modules": modules}
    runs = [{"num_layers": 4 if model == "tests/dense" else 2, "recompute": again}]
    return _training(name, degrees or {}, runs, model=model, alone=alone)


_FIRST_LAYERS = [{"num_layers": 4, "recompute": {"granularity": "full", "num_layers": 2}}]
_TWO, _FOUR = [{"num_layers": 2, "stages": 2}], [{"num_layers": 1, "stages": 4}]
CASES = {
    1: [
        _training("plain", {}),
        _training("layers", {}, _FIRST_LAYERS),
        _recomputing("attention-and-norms", ["core_attention", "layernorm"]),
        _recomputing("mlp", ["mlp"]),
        _recomputing("activation", ["moe_activation"], "tests/moe"),
        _recomputing("moe", ["moe"], "tests/moe"),
        _recomputing("moe-with-activation", ["moe", "moe_activation"], "tests/moe"),
        _recomputing("mlp-of-two-alone", ["mlp"], degrees={"tp": 2}),
        _training("zero", {"dp": 2}, zero_stage=1),
        _training("context-alone", {"cp": 2}),
        WorkerCase("serving", "serve", "decode", {}, partner="prefill"),
    ],
    2: [
        _training("1f1b", {"pp": 2}, _TWO, alone=False),
        _training("few-batches", {"pp": 2}, _TWO, num_micro_batches=1, alone=False),
        _training("interleaved", {"pp": 2, "vpp": 2}, _FOUR, schedule="interleaved", alone=False),
        _training("zero-bubble", {"pp": 2, "vpp": 2}, _FOUR, schedule="zb_v", alone=False),
        _training("context", {"cp": 2}, alone=False),
        _training("latent-context", {"cp": 2}, [{"num_layers": 2}], model="tests/latent", alone=False),
        _recomputing("mlp-of-two", ["mlp"], degrees={"tp": 2}, alone=False),
        _recomputing("attention-of-context", ["core_attention"], degrees={"cp": 2}, alone=False),
        WorkerCase("prompt", "serve", "prefill", {"cp": 2}, alone=False),
        WorkerCase("stages", "serve", "prefill", {"pp": 2}, alone=False),
        WorkerCase("transfer", "serve", "prefill", {"tp": 2}, alone=False, partner="decode"),
    ],
}


@pytest.fixture
def case_of(bench_plan: BenchPlan, forked_ranks: None, tmp_path: Path) -> Callable[[str], Verdicts]:
    """What the ranks of a case measured, by its name."""

    def run(name: str) -> Verdicts:
        world = next(world for world, cases in CASES.items() if name in [case.name for case in cases])
        if world not in _RESULTS:
            _RESULTS[world] = verdicts(CASES[world], world, bench_plan, tmp_path / f"world{world}")
        return _RESULTS[world][name]

    return run


@pytest.fixture
def of(case_of: Callable[[str], Verdicts]) -> Callable[..., Any]:
    """The verdict of a case by name, step and rank."""
    return lambda name, step="train", rank=0: case_of(name).steps[step, rank]


def _again(step: Any) -> dict[str, Any]:  # noqa: ANN401
    return {name: row for name, row in step.operators.items() if name.endswith("_recompute")}


def test_layers_that_are_recomputed_run_again_on_both_sides(of: Callable[..., Any]) -> None:
    step = of("layers")
    again = _again(step)
    assert {"qkv_recompute", "prefill_attention_recompute", "ffn_down_recompute", "norm_recompute"} <= set(again)
    for name, row in again.items():
        once = step.operators[name.removesuffix("_recompute")]
        assert row.count == once.count / 2
        assert row.predicted_s == pytest.approx(once.predicted_s / 2)
        assert row.measured_s > 0
    assert "embedding_recompute" not in step.operators


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        ("plain", {}),
        ("attention-and-norms", {"prefill_attention": 4, "norm": 8}),
        ("mlp", {"ffn_up": 4, "ffn_activation": 4, "ffn_down": 4}),
        ("activation", {"expert_activation": 2}),
        ("moe", {"experts": 2, "router": 2, "router_top_k": 2, "expert_permute": 4, "expert_combine": 2}),
        (
            "moe-with-activation",
            {"experts": 2, "router": 2, "router_top_k": 2, "expert_permute": 4, "expert_combine": 2},
        ),
        ("mlp-of-two", {"ffn_up": 4, "ffn_activation": 4, "ffn_down": 4, "ffn_all_reduce": 4}),
        ("attention-of-context", {"prefill_attention": 4, "context_all_gather": 8}),
    ],
)
def test_modules_that_are_recomputed_run_again_and_nothing_else(
    name: str, runs: dict[str, int], of: Callable[..., Any]
) -> None:
    again = _again(of(name))
    assert {name: row.count for name, row in again.items()} == {f"{name}_recompute": n for name, n in runs.items()}
    assert all(row.measured_s > 0 for row in again.values())


def test_the_sum_of_a_part_that_is_recomputed_is_absent_with_its_ranks(of: Callable[..., Any]) -> None:
    assert {"ffn_all_reduce", "ffn_all_reduce_recompute"} <= set(of("mlp-of-two-alone").absent)
    assert of("mlp-of-two").absent == ("loss_all_reduce",)


def test_gradients_are_timed_by_operator(of: Callable[..., Any]) -> None:
    step = of("plain")
    back = {name: row for name, row in step.operators.items() if name.endswith("_backward")}
    assert {"qkv_backward", "prefill_attention_backward", "ffn_up_backward", "norm_backward"} <= set(back)
    assert all(row.measured_s > 0 for row in back.values())
    for name in ("qkv", "ffn_up"):  # two gradients for each product
        assert step.operators[f"{name}_backward"].predicted_s > step.operators[name].predicted_s


def test_the_optimizer_is_predicted_by_the_bytes_that_it_moves(of: Callable[..., Any]) -> None:
    update = of("plain", "optimizer")
    assert update.claimed
    assert set(update.operators) == {"optimizer"}
    parameters = 2 * 1024 * 128 + 4 * (128 * 256 + 128 * 128 + 3 * 128 * 384 + 2 * 16 + 2 * 128)
    reached = 10e9 * load_calibration().efficiencies.elementwise_bandwidth
    assert update.predicted_s == pytest.approx(parameters * 28 / reached, rel=0.1)
    assert of("zero", "optimizer").predicted_s == pytest.approx(update.predicted_s / 2, rel=0.01)


def test_steps_are_predicted_for_the_format_that_ran(of: Callable[..., Any]) -> None:
    step = of("serving", "decode")
    assert (step.working, step.as_json()["working"]) == ("fp32", "fp32")
    assert step.operators["logits"].predicted_s >= 1024 * 128 * 4 / 10e9, "four bytes a weight"


def test_a_decode_step_copies_its_cache_out_of_blocks(of: Callable[..., Any]) -> None:
    gather = of("serving", "decode").operators["kv_gather"]
    assert gather.count == 4
    assert gather.measured_s > 0
    assert gather.predicted_s > 0


@pytest.mark.parametrize(("name", "batches"), [("1f1b", 4), ("few-batches", 1), ("interleaved", 4)])
def test_a_pipeline_that_runs_whole_runs_its_schedule(
    name: str, batches: int, of: Callable[..., Any], case_of: Callable[[str], Verdicts]
) -> None:
    first, last = of(name), of(name, rank=1)
    for step in (first, last):
        assert step.executed_share == pytest.approx(1.0)
        assert step.operators["pipeline"].predicted_s > 0
        assert ("gradient_accumulation" in step.operators) == (batches > 1)
        assert step.operators["qkv"].count == 2 * batches
    own = [step.predicted_s - step.operators["pipeline"].predicted_s for step in (first, last)]
    assert max(first.predicted_s, last.predicted_s) > max(own)
    assert case_of(name).meetings == (RUNS, RUNS), "both measure from start to start"


def test_more_micro_batches_take_longer_and_waste_less(of: Callable[..., Any]) -> None:
    few, many = of("few-batches"), of("1f1b")
    assert many.operators["qkv"].count == 4 * few.operators["qkv"].count
    waits = [step.operators["pipeline"].predicted_s / step.predicted_s for step in (few, many)]
    assert waits[1] < waits[0]


def test_a_schedule_without_an_executor_leaves_stages_to_themselves_and_says_so(of: Callable[..., Any]) -> None:
    step = of("zero-bubble")
    assert "`zb_v` is not executed" in step.note
    assert "pipeline" not in step.operators
    assert step.operators["qkv"].count == 2


def test_a_prompt_through_all_stages_takes_as_long_on_every_rank(
    of: Callable[..., Any], case_of: Callable[[str], Verdicts]
) -> None:
    first, last = of("stages", "prefill"), of("stages", "prefill", 1)
    assert first.predicted_s == pytest.approx(last.predicted_s)
    assert first.operators["pipeline"].predicted_s > last.predicted_s / 4
    assert case_of("stages").meetings == (RUNS, RUNS)
    assert "sampling" in last.operators


def test_a_context_parallel_rank_has_its_part_of_the_tokens(of: Callable[..., Any]) -> None:
    whole, alone, both = of("plain"), of("context-alone"), of("context")
    gathers = {"context_all_gather", "context_all_gather_backward"}
    assert gathers <= set(alone.absent)
    assert gathers <= set(both.operators)
    for name in ("qkv", "ffn_up"):
        assert both.operators[name].predicted_s < 0.8 * whole.operators[name].predicted_s
    assert alone.operators["prefill_attention"].predicted_s < 0.8 * whole.operators["prefill_attention"].predicted_s
    assert both.executed_share == pytest.approx(1.0)


def test_latents_of_a_context_parallel_rank_are_expanded_before_they_are_gathered(of: Callable[..., Any]) -> None:
    step = of("latent-context")
    assert step.executed_share == pytest.approx(1.0)
    assert {step.operators[name].count for name in ("context_all_gather", "context_all_gather_backward")} == {4}
    assert {"kv_up", "prefill_attention"} <= set(step.operators)


def test_a_prompt_over_context_parallel_ranks_keeps_all_of_its_cache(of: Callable[..., Any]) -> None:
    step = of("prompt", "prefill")
    assert step.executed_share == pytest.approx(1.0)
    assert step.operators["context_all_gather"].count == 8  # keys and values, in four layers
    assert "kv_gather" not in step.operators


def test_context_parallel_roles_leave_steps_after_cached_tokens_out(bench_plan: BenchPlan) -> None:
    plan = read_plan(bench_plan("rl", {"rollout": {"cp": 2}, "actor": {}}))
    role = plan.role("rollout")
    assert [step.kind for step in role_steps(plan, role)] == ["prefill"]
    assert set(left_out(role)) == {"rollout.decode", "rollout.mixed"}
    assert not left_out(plan.role("actor"))
    serve = read_plan(bench_plan("serve", {"decode": {"cp": 2}}))
    with pytest.raises(PlannerError, match="steps after cached tokens"):
        role_steps(serve, serve.role("decode"))


def test_a_cache_sent_between_ranks_is_compared_with_their_link(of: Callable[..., Any]) -> None:
    sent = of("transfer", "kv_transfer")
    assert sent.claimed
    assert set(sent.operators) == {"kv_transfer"}
    size = 2 * 96 * 4 * 16 * 2 * 4 / 2  # key and value, tokens, heads over two ranks, width, bf16, layers
    assert sent.predicted_s >= size / 1e9  # at the 1 GB/s of the link
    assert "joined like the roles" in sent.note


def test_a_cache_copied_on_one_device_makes_no_claim_about_a_link(of: Callable[..., Any]) -> None:
    copied = of("serving", "kv_transfer")
    assert not copied.claimed
    assert copied.absent == ("kv_transfer",)
    assert "no claim" in copied.note
