"""What drafting and verifying cost: limits that are known exactly, and what a step moves."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.costs.operators.forward import forward
from planner.costs.operators.kernels import DecodeAttention, Experts, demand
from planner.costs.operators.work import Shards, Work
from planner.costs.rates.calibration import load_calibration
from planner.costs.rates.pricer import Pricer, make_pricer
from planner.costs.rates.step import StepTime, step_time
from planner.costs.serving.speculation import (
    DRAFTING,
    Drafter,
    drafter_of,
    drafting_step,
    tokens_per_step,
)
from planner.errors import PlannerError
from planner.hardware.cluster import Pool
from planner.hardware.library import find_node
from planner.models.architecture import Architecture
from planner.models.library import find_model
from planner.models.parameters import mtp_tensors, tensor_bytes
from planner.problem.speculation import SpeculationSpec

KNOWN = load_calibration("default")
ENGINE = KNOWN.engine("vllm", None)
MODELS = ("deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-32B", "openai/gpt-oss-120b", "Qwen/Qwen3.5-397B-A17B")
MTP = SpeculationSpec(method="mtp", acceptance=0.7)


def pricer_of(arch: Architecture) -> Pricer:
    pool = Pool("h200", find_node("h200"), 4)
    return make_pricer(pool, arch, engine="vllm", version=None, calibration=KNOWN, store=None)


def step(arch: Architecture, work: Work, drafter: Drafter | None = None, tp: float = 4.0) -> StepTime:
    shards, pricer = Shards.of(np.full(len(work.tokens), tp), 1, 1, tp, 1), pricer_of(arch)
    times = step_time(arch, pricer, shards, work, ENGINE)
    return times if drafter is None else times.beside(drafting_step(drafter, pricer, shards, work))


@pytest.mark.parametrize("name", MODELS)
def test_a_step_without_drafts_is_the_plain_one_bit_for_bit(name: str) -> None:
    arch = find_model(name)
    for work in (Work.decode([1.0, 24.0, 256.0], 3000.0), Work.of(512.0, 1.0, 100.0, [1.0, 8.0, 64.0], 900.0)):
        plain, none = step(arch, work), step(arch, work.with_drafts(0.0), Drafter("stated", 0.7, step_s=1e-3))
        assert np.array_equal(plain.seconds, none.seconds)


def test_a_verifying_step_reads_the_cache_once_and_computes_every_token() -> None:
    for name, kind in (("Qwen/Qwen3-32B", False), ("deepseek-ai/DeepSeek-V3", True)):
        arch, work = find_model(name), Work.decode(16.0, 4000.0)
        plain, verifying = (
            next(op for op in forward(arch, Shards.of(4.0, 1, 1, 4.0, 1), step) if isinstance(op, DecodeAttention))
            for step in (work, work.with_drafts(3.0))
        )
        assert plain.latent is kind
        assert demand(verifying).flop[0] == 4.0 * demand(plain).flop[0]
        assert demand(plain).size_bytes[0] < demand(verifying).size_bytes[0] < 1.2 * demand(plain).size_bytes[0]


def test_experts_are_those_that_all_tokens_of_the_step_choose() -> None:
    arch, shards = find_model("deepseek-ai/DeepSeek-V3"), Shards.of(1.0, 1, 16, 1, 16)
    verifying, plain = (
        next(op for op in forward(arch, shards, work) if isinstance(op, Experts))
        for work in (Work.decode(2.0, 4000.0).with_drafts(3.0), Work.decode(8.0, 4000.0))
    )
    assert np.array_equal(demand(verifying).size_bytes, demand(plain).size_bytes)


def test_a_small_batch_verifies_nearly_for_free_and_a_large_one_pays_for_every_token() -> None:
    arch = find_model("Qwen/Qwen3-32B")
    small, large = (
        step(arch, Work.decode(batch, 500.0).with_drafts(3.0)).seconds[0]
        / step(arch, Work.decode(batch, 500.0)).seconds[0]
        for batch in (1.0, 1024.0)
    )
    assert small < 1.1
    assert large > 2.0


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 12), st.floats(0.0, 1.0))
def test_tokens_of_a_step_are_the_expected_length_of_a_run_of_right_drafts(drafts: int, acceptance: float) -> None:
    chances = [acceptance**right * (1.0 - acceptance) for right in range(drafts)] + [acceptance**drafts]
    expected = sum(chance * (right + 1) for right, chance in enumerate(chances))
    assert float(tokens_per_step(drafts, acceptance)) == pytest.approx(expected, rel=1e-12)
    assert float(tokens_per_step(drafts, 1.0)) == drafts + 1
    assert float(tokens_per_step(0, acceptance)) == 1.0


def test_a_prediction_head_has_the_bytes_of_its_tensors() -> None:
    arch = find_model("deepseek-ai/DeepSeek-V3")
    drafter = drafter_of(MTP, arch, {}, "options.speculation")
    assert drafter is not None
    sizes = drafter.weight_bytes(Shards.of(np.ones(4)), np.array([0.0, 1.0, 2.0, 3.0]))
    own = [tensor for tensor in mtp_tensors(arch) if not tensor.name.endswith((".embedding", ".lm_head"))]
    assert sizes[0] == 0.0
    assert sizes[1:] == pytest.approx(np.full(3, sum(tensor_bytes(tensor, arch) for tensor in own)), rel=1e-4)


def test_every_further_draft_is_one_more_pass_and_a_draft_model_reads_its_weights_in_each() -> None:
    arch, draft = find_model("Qwen/Qwen3-32B"), find_model("Qwen/Qwen3-0.6B")
    spec = SpeculationSpec(method="model", acceptance=0.7, model="draft")
    drafter = drafter_of(spec, arch, {"draft": draft}, "options.speculation")
    assert drafter is not None
    work = Work.decode(np.full(4, 8.0), 2000.0).with_drafts([0.0, 1.0, 2.0, 3.0])
    seconds = step(arch, work, drafter).by_operator[DRAFTING]
    assert seconds[0] == 0.0
    assert seconds[3] - seconds[2] > 0.0
    weights = float(drafter.weight_bytes(Shards.of(4.0), np.ones(1))[0])
    assert np.all(np.diff(seconds) > weights / find_node("h200").accelerator.memory_bandwidth_bytes_per_s)


def test_prompts_go_through_the_drafter_too() -> None:
    arch = find_model("deepseek-ai/DeepSeek-V3")
    drafter = drafter_of(MTP, arch, {}, "options.speculation")
    assert drafter is not None
    short, long = (
        step(arch, Work.prefill(tokens).with_drafts(1.0), drafter).by_operator[DRAFTING][0]
        for tokens in (256.0, 8192.0)
    )
    assert 0.0 < short < long
    assert step(arch, Work.prefill(8192.0), drafter).seconds == step(arch, Work.prefill(8192.0)).seconds


def test_stated_drafts_take_their_time_and_no_memory() -> None:
    drafter = Drafter("stated", 0.5, step_s=2e-3)
    work = Work.decode([0.0, 8.0], 2000.0).with_drafts(3.0)
    seconds = step(find_model("Qwen/Qwen3-32B"), work, drafter).by_operator[DRAFTING]
    assert seconds.tolist() == [0.0, 6e-3]
    assert not drafter.weight_bytes(Shards.of(np.ones(2)), np.ones(2)).any()


def test_drafters_that_cannot_be_are_refused() -> None:
    qwen, llama = find_model("Qwen/Qwen3-32B"), find_model("meta-llama/Llama-3.1-8B")
    with pytest.raises(PlannerError, match="no prediction heads"):
        drafter_of(MTP, qwen, {}, "options.speculation")
    spec = SpeculationSpec(method="model", acceptance=0.7, model="draft")
    with pytest.raises(PlannerError, match="vocabulary"):
        drafter_of(spec, qwen, {"draft": llama}, "options.speculation")
    with pytest.raises(PlannerError, match="no model is called `draft`"):
        drafter_of(spec, qwen, {"qwen": qwen}, "options.speculation")
    assert drafter_of(spec.model_copy(update={"draft_tokens": (0,)}), qwen, {}, "") is None
    assert drafter_of(None, qwen, {}, "") is None


def test_heads_in_another_format_are_priced_in_it() -> None:
    arch = find_model("deepseek-ai/DeepSeek-V3")
    wide = replace(arch, precisions=replace(arch.precisions, mtp="bf16"))
    shards = Shards.of(1.0)
    narrow_bytes, wide_bytes = (
        float(drafter.weight_bytes(shards, np.ones(1))[0])
        for model in (arch, wide)
        if (drafter := drafter_of(MTP, model, {}, "")) is not None
    )
    assert wide_bytes == pytest.approx(2.0 * narrow_bytes, rel=0.01)
