"""What executed steps hold beyond the operators of a plan: second runs, the optimizer, context parts, other formats."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.costs.operators.attention_core import causal_pairs
from planner.costs.operators.context import GATHER, context_gathers, context_part
from planner.costs.operators.copies import kv_gathers
from planner.costs.operators.forward import forward
from planner.costs.operators.kernels import Collective, Gemm, MemoryPass, PrefillAttention, demand
from planner.costs.operators.optimizer import adamw, gradient_accumulation
from planner.costs.operators.recompute import ENDS, recomputed_layers, recomputed_modules
from planner.costs.operators.work import Shards, Work
from planner.costs.operators.working_format import in_working_format
from planner.models.architecture import Architecture, LatentAttention
from planner.models.kv import kv_bytes
from planner.models.library import find_model

DENSE, MOE, LATENT = (
    find_model(name) for name in ("meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V3")
)
SHARDS, WORK = Shards.of(tp=2, moe_tp=1, ep=2), Work.prefill(4096, sequences=2)


@pytest.mark.parametrize("arch", [DENSE, MOE, LATENT], ids=lambda arch: arch.name)
def test_layers_run_again_with_all_that_is_not_at_the_ends_of_the_model(arch: Architecture) -> None:
    once = [op for op in forward(arch, SHARDS, WORK) if not op.name.startswith(ENDS)]
    again = recomputed_layers(arch, SHARDS, WORK)
    assert [op.name for op in again] == [f"{op.name}_recompute" for op in once]
    assert [replace(op, name="") for op in again] == [replace(op, name="") for op in once]


@pytest.mark.parametrize("arch", [DENSE, MOE, LATENT], ids=lambda arch: arch.name)
def test_modules_are_parts_of_layers_that_do_not_overlap(arch: Architecture) -> None:
    modules = ("core_attention", "mlp", "moe", "layernorm", "mla_up_projection")
    parts = [op for module in modules for op in recomputed_modules(arch, SHARDS, WORK, [module])]
    whole = recomputed_layers(arch, SHARDS, WORK)
    for name in {op.name for op in parts}:
        assert sum(op.count for op in parts if op.name == name) == sum(op.count for op in whole if op.name == name)
    assert {"prefill_attention_recompute", "norm_recompute"} <= {op.name for op in parts}
    with pytest.raises(KeyError):
        recomputed_modules(arch, SHARDS, WORK, ["mind"])


def test_the_activation_of_experts_is_a_pass_over_the_copies_of_the_tokens() -> None:
    (activation,) = recomputed_modules(MOE, SHARDS, WORK, ["moe_activation"])
    assert isinstance(activation, MemoryPass)
    copies = 4096 * 8 / 2  # of the tokens, top_k each, half of the experts
    assert activation.size_bytes == pytest.approx(copies * 3 * 768 * 2)


def test_an_update_moves_weights_moments_and_gradients_and_casts() -> None:
    million = np.array([1e6])
    assert adamw(million, "fp32").size_bytes == pytest.approx(28e6)
    assert adamw(million).size_bytes == pytest.approx(34e6)
    assert gradient_accumulation(million).size_bytes == pytest.approx(6e6)
    assert (adamw(million).count, adamw(million).kernels) == (1.0, 2.0)
    assert (gradient_accumulation(million).count, gradient_accumulation(million).kernels) == (1.0, 1.0)


@given(chunks=st.integers(1, 64), cp=st.integers(1, 16))
def test_context_parallel_ranks_share_the_attention_of_a_sequence_evenly(chunks: int, cp: int) -> None:
    tokens = np.array([float(2 * cp * chunks)])
    own, front = (np.array([value]) for value in context_part(float(tokens[0]), cp))
    assert cp * causal_pairs(own, front) == pytest.approx(causal_pairs(tokens, np.zeros(1)))


@pytest.mark.parametrize("arch", [DENSE, MOE, LATENT], ids=lambda arch: arch.name)
def test_context_parallel_ranks_gather_the_cache_of_all_tokens(arch: Architecture) -> None:
    gathers = list(context_gathers(arch, SHARDS, 4, 1000.0))
    assert {op.name for op in gathers} == {GATHER}
    moved = sum(float(op.count * op.size_bytes[0]) for op in gathers if isinstance(op, Collective))
    bf16 = replace(arch, precisions=replace(arch.precisions, kv_cache="bf16"))
    assert moved == pytest.approx(float(kv_bytes(bf16, 1000, 2)))
    assert not list(context_gathers(arch, SHARDS, 1, 1000.0))


def test_latents_are_expanded_before_ranks_that_train_exchange_them() -> None:
    cached, trained = (list(context_gathers(LATENT, SHARDS, 4, 1000.0, trained=trained)) for trained in (False, True))
    mixer = LATENT.layers[0].mixer
    assert isinstance(mixer, LatentAttention)
    values = mixer.num_heads / 2 * (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim + mixer.v_head_dim)
    for gathers, runs, width in ((cached, 1, mixer.kv_lora_rank + mixer.qk_rope_head_dim), (trained, 2, values)):
        moved = sum(float(op.count * op.size_bytes[0]) for op in gathers if isinstance(op, Collective))
        assert moved == pytest.approx(2.0 * 1000.0 * width * LATENT.num_layers)
        assert sum(op.count for op in gathers) == runs * LATENT.num_layers


@pytest.mark.parametrize("arch", [DENSE, MOE, LATENT], ids=lambda arch: arch.name)
def test_a_cache_out_of_its_blocks_is_read_and_written(arch: Architecture) -> None:
    copies = [op for op in kv_gathers(arch, SHARDS, 1000.0) if isinstance(op, MemoryPass)]
    assert sum(op.count * op.size_bytes[0] for op in copies) == pytest.approx(2 * float(kv_bytes(arch, 1000, 2)))
    assert not list(kv_gathers(arch, SHARDS, 0.0))


def test_fp32_takes_twice_the_bytes_and_bf16_is_left_as_it_is() -> None:
    plain = forward(DENSE, SHARDS, WORK)
    assert list(in_working_format(plain, "bf16")) == plain
    doubled = {op.name: op for op in in_working_format(plain, "fp32")}
    for op in plain:
        if isinstance(op, Gemm | PrefillAttention):
            asked, once = demand(doubled[op.name]), demand(op)  # type: ignore[arg-type]  # of the same kind
            assert asked.size_bytes == pytest.approx(2 * once.size_bytes)
            assert asked.flop == pytest.approx(once.flop)
            assert asked.precision == "fp32"
        elif isinstance(op, Collective) or op.name != "sampling":
            assert doubled[op.name].size_bytes == pytest.approx(2 * op.size_bytes)  # type: ignore[union-attr]
    assert doubled["sampling"] == next(op for op in plain if op.name == "sampling")
