"""Weight formats on GPUs without units for them: stored only, or not at all."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
from serve_problems import small
from static_level import solve

from planner.emit.registry import emit
from planner.engines.formats import stored_only, unloadable, weight_formats
from planner.engines.load import release_of
from planner.errors import PlannerError
from planner.hardware.library import find_accelerator
from planner.kinds.serve.options import ServeDecision
from planner.kinds.serve.steady.engine_rules import require_loadable
from planner.kinds.serve.steady.search import prepare
from planner.models.library import find_model
from planner.progress import Limits

VLLM = release_of("vllm", None)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize(
    ("gpu", "precision", "below"),
    [
        ("a100_sxm", "fp8", "Marlin"),
        ("a100_sxm", "fp8_block", "Marlin"),
        ("a100_sxm", "bf16", None),
        ("l40s", "fp8", None),
        ("h200_sxm", "fp8", None),
        ("h200_sxm", "nvfp4", "Marlin"),
        ("b200_sxm", "nvfp4", None),
        ("mi300x", "fp8", None),
    ],
)
def test_a_gpu_without_units_stores_a_format_and_multiplies_in_16_bits(
    engine: str, gpu: str, precision: str, below: str | None
) -> None:
    stored = stored_only(release_of(engine, None), precision, find_accelerator(gpu))
    assert (stored is None) == (below is None)
    assert stored is None or below in stored.format.below  # type: ignore[operator]


def test_units_are_told_alike_by_engines_and_by_the_catalog() -> None:
    for name in ("a100_sxm", "l40s", "h100_sxm", "h200_sxm", "b200_sxm"):
        gpu = find_accelerator(name)
        for precision in ("fp8", "fp8_block", "nvfp4"):
            assert (stored_only(VLLM, precision, gpu) is None) == gpu.supports(precision), (name, precision)


def test_a_gpu_without_a_kernel_is_refused_with_what_it_lacks() -> None:
    setting = prepare(small())
    ((key, pool_costs),) = setting.costs_of_pool.items()
    gpu = replace(pool_costs.pool.node.accelerator, compute_capability="7.0")
    assert unloadable(VLLM, "fp8", gpu) is not None
    assert unloadable(VLLM, "bf16", gpu) is None
    pool = replace(pool_costs.pool, node=replace(pool_costs.pool.node, accelerator=gpu))
    with pytest.raises(PlannerError, match=r"no kernel for fp8 weights .*7\.0, wanted 7\.5") as raised:
        require_loadable(VLLM, {key: replace(pool_costs, pool=pool)}, "problem.json")
    assert "bf16" in raised.value.hint


def test_tensorrt_llm_runs_on_no_gpu_of_amd() -> None:
    on_amd = small({"cluster.pools.0.gpu": "mi300x"})
    assert prepare(on_amd)
    engine = on_amd.problem.engine.model_copy(update={"name": "trtllm"})
    with pytest.raises(PlannerError, match="TensorRT-LLM does not run on"):
        prepare(replace(on_amd, problem=on_amd.problem.model_copy(update={"engine": engine})))


def test_formats_of_a_model_are_those_of_its_matrices() -> None:
    assert weight_formats(find_model("deepseek-ai/DeepSeek-V3")) == {"fp8_block"}


def test_plans_say_what_the_engine_runs_on_a_gpu_without_units() -> None:
    plans = {gpu: solve(small({"cluster.pools.0.gpu": gpu}), Limits()) for gpu in ("a100", "h100")}
    told = {gpu: [text for text in plan.assumptions if "no units for fp8" in text] for gpu, plan in plans.items()}
    assert len(told["a100"]) == 1
    assert "Marlin" in told["a100"][0]
    assert told["h100"] == []


def test_a_plan_of_a_release_without_rules_names_the_nearest() -> None:
    plan = solve(small({"engine": {"name": "vllm", "version": "0.20.1"}}), Limits())
    assert any("vLLM 0.20.1" in text and "0.33.0" in text for text in plan.assumptions)
    with pytest.raises(PlannerError, match="`nightly` is no release of vLLM"):
        prepare(small({"engine": {"name": "vllm", "version": "nightly"}}))


@pytest.mark.parametrize(
    ("engine", "weights", "needed"),
    [("vllm", "fp8_block", False), ("sglang", "fp8_block", True), ("vllm", "nvfp4", True), ("vllm", "bf16", False)],
)
def test_plans_say_which_weights_no_engine_makes_while_loading(engine: str, weights: str, needed: bool) -> None:
    """Those that `emit` then refuses."""
    asked = {"models.llama.weights": weights, "engine": {"name": engine}, "cluster.pools.0.gpu": "b200"}
    plan = solve(small(asked), Limits())
    assert any(f"quantised to {weights} beforehand" in text for text in plan.assumptions) == needed
    refused = pytest.raises(PlannerError, match="while loading it") if needed else nullcontext()
    with refused:
        emit(plan, ServeDecision.model_validate(plan.decision), engine)
