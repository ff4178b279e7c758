"""Bytes on a device against the whole model's, and against what must fit."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.costs.operators.work import Shards
from planner.costs.serving.memory import activation_bytes, footprint, kv_cache_bytes, weight_bytes
from planner.models import parameters
from planner.models.architecture import BITS, Architecture
from planner.models.kv import kv_bytes_per_token
from planner.models.library import find_model, with_precision

DENSE = ("meta-llama/Meta-Llama-3.1-70B", "Qwen/Qwen3-32B")
MOE = ("Qwen/Qwen3-235B-A22B", "deepseek-ai/DeepSeek-V3", "mistralai/Mixtral-8x7B-v0.1")
HYBRID = ("Qwen/Qwen3.5-397B-A17B", "openai/gpt-oss-120b", "deepseek-ai/DeepSeek-V3.2")


def test_the_widest_moment_of_narrow_feed_forward_layers_is_their_latent_attention() -> None:
    arch = find_model("deepseek-ai/DeepSeek-V3")
    attention = replace(arch, layers=tuple(replace(layer, ffn=None) for layer in arch.layers))
    per_head = 2 * (128 + 64) + 2 * 128  # queries and keys, values and outputs
    live = 1000.0 * (3.0 * 7168 + 128 * per_head / 4) * 2.0
    assert activation_bytes(attention, Shards.of(4), 1000.0, 0.0)[0] == live


def _loaded(arch: Architecture) -> float:
    """All weights but those of the prediction heads."""
    heads = sum(parameters.tensor_bytes(tensor, arch) for tensor in parameters.mtp_tensors(arch))
    return parameters.weight_bytes(arch) - heads


def _replicated(arch: Architecture, *splits: str) -> float:
    whole = footprint(arch)
    return sum(part.get(split, 0.0) for part in (whole.layers, whole.ends) for split in splits)


@pytest.mark.parametrize("name", [*DENSE, *MOE, *HYBRID])
def test_one_device_holds_the_whole_model(name: str) -> None:
    arch = find_model(name)
    assert weight_bytes(arch, Shards.of(1))[0] == pytest.approx(_loaded(arch), rel=1e-12)


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("name", [*DENSE, "Qwen/Qwen3-235B-A22B"])
def test_tensor_parallel_ranks_hold_the_model_and_copies_of_what_is_replicated(name: str, tp: int) -> None:
    arch = find_model(name)
    per_rank = weight_bytes(arch, Shards.of(tp, 1, 1, 1, tp))[0]
    copies = (tp - 1) * _replicated(arch, "replicated")
    assert tp * per_rank == pytest.approx(_loaded(arch) + copies, rel=1e-12)
    assert copies < 0.01 * _loaded(arch)


@pytest.mark.parametrize(("moe_tp", "ep"), [(1, 8), (8, 1), (2, 4)])
@pytest.mark.parametrize("name", MOE)
def test_data_parallel_ranks_share_the_experts_and_copy_the_rest(name: str, moe_tp: int, ep: int) -> None:
    arch = find_model(name)
    per_rank = weight_bytes(arch, Shards.of(1, 1, 8, moe_tp, ep))[0]
    experts = _replicated(arch, "experts")
    assert 8 * per_rank == pytest.approx(experts + 8 * (_loaded(arch) - experts), rel=1e-12)


def test_heads_beyond_the_kv_heads_are_copied() -> None:
    arch = find_model("meta-llama/Meta-Llama-3.1-70B")
    eight, sixteen = weight_bytes(arch, Shards.of([8.0, 16.0]))
    keys_and_values = 80 * 2 * 8 * 128 * 8192 * 2
    rest = _loaded(arch) - keys_and_values - _replicated(arch, "replicated")
    assert eight - sixteen == pytest.approx(rest / 8 - rest / 16, rel=1e-9)


def test_two_stages_share_layers_and_ends() -> None:
    arch = find_model("meta-llama/Meta-Llama-3.1-70B")
    whole, halved = weight_bytes(arch, Shards.of(1, [1.0, 2.0]))
    assert 2 * halved == pytest.approx(whole, rel=1e-12)


def test_the_fullest_stage_holds_the_layers_that_do_not_divide() -> None:
    arch = find_model("meta-llama/Meta-Llama-3.1-70B")
    three = weight_bytes(arch, Shards.of(1, 3))[0]
    layers = sum(footprint(arch).layers.values())
    assert three - layers * 27 / 80 == pytest.approx(2 * 128256 * 8192 * 2 / 2, rel=1e-3)


def test_fp8_halves_the_weights_of_linear_layers() -> None:
    arch = find_model("meta-llama/Meta-Llama-3.1-70B")
    quantised = with_precision(arch, "fp8")
    ends = 2 * 128256 * 8192 * 2
    linear = _loaded(arch) - ends - _replicated(arch, "replicated")
    saved = weight_bytes(arch, Shards.of(1))[0] - weight_bytes(quantised, Shards.of(1))[0]
    assert saved == pytest.approx(linear * (1 - BITS["fp8"] / BITS["bf16"]), rel=1e-3)


@pytest.mark.parametrize(
    ("name", "per_token"),
    [
        ("meta-llama/Meta-Llama-3.1-70B", 80 * 2 * 8 * 128 * 2),
        ("deepseek-ai/DeepSeek-V3", 61 * 576 * 2),
        ("Qwen/Qwen3-32B", 64 * 2 * 8 * 128 * 2),
    ],
)
def test_a_token_of_context_takes_its_keys_and_values(name: str, per_token: float) -> None:
    arch = find_model(name)
    less, more = kv_cache_bytes(arch, Shards.of(1), [1000.0, 1001.0])
    assert more - less == pytest.approx(per_token)
    assert kv_bytes_per_token(arch) == pytest.approx(per_token)


@given(context=st.floats(0, 1e5), more=st.floats(0, 1e5), name=st.sampled_from([*DENSE, *MOE, *HYBRID]))
def test_a_longer_context_never_takes_less_cache(context: float, more: float, name: str) -> None:
    less_bytes, more_bytes = kv_cache_bytes(find_model(name), Shards.of([1.0, 1.0]), [context, context + more])
    assert less_bytes <= more_bytes


@given(tp=st.sampled_from([1, 2, 4, 8, 16]), pp=st.sampled_from([1, 2, 3, 4]), name=st.sampled_from([*DENSE, *HYBRID]))
def test_more_ranks_never_hold_more_each(tp: int, pp: int, name: str) -> None:
    arch = find_model(name)
    shards = Shards.of([tp, 2 * tp, tp], [pp, pp, 2 * pp], 1, 1, [tp, 2 * tp, tp])
    for sizes in (
        weight_bytes(arch, shards),
        kv_cache_bytes(arch, shards, 1e4),
        activation_bytes(arch, shards, 512, 8),
    ):
        assert np.all(sizes[1:] <= sizes[0] * (1 + 1e-12))


def test_latent_caches_are_whole_on_every_tensor_parallel_rank() -> None:
    arch = find_model("deepseek-ai/DeepSeek-V3")
    alone, shared = kv_cache_bytes(arch, Shards.of([1.0, 8.0]), 4096.0)
    assert alone == shared


def test_activations_grow_with_tokens_and_logits_with_sequences() -> None:
    arch, shards = find_model("meta-llama/Meta-Llama-3.1-70B"), Shards.of([4.0, 4.0, 4.0])
    base, tokens, sampled = activation_bytes(arch, shards, [1000.0, 2000.0, 1000.0], [8.0, 8.0, 16.0])
    per_token = (3 * 8192 + 3 * 28672 / 4) * 2  # residual, input and output; gate, up and their product
    assert tokens - base == pytest.approx(1000 * per_token)
    assert sampled - base == pytest.approx(8 * 128256 * (2 / 4 + 4))


def test_weights_divide_as_their_tensors_are_sharded_and_whole_layers_go_to_the_fullest_stage() -> None:
    arch = find_model("meta-llama/Meta-Llama-3.1-8B")  # 32 layers, 8 key-value heads; input and output matrix apart
    hidden, heads, inner, vocab = 4096, 32 * 128, 14336, 128256

    def layer_bytes(tp: int) -> float:
        projections = (2 * hidden * heads + 3 * hidden * inner) / tp + 2 * hidden * 1024 / min(tp, 8)
        return 2.0 * (projections + 2 * hidden)

    ends = 2.0 * (2 * vocab * hidden)
    alone, wide, staged = weight_bytes(arch, Shards.of([1, 16, 2], [1, 1, 3]))
    assert alone == 32 * layer_bytes(1) + ends + 2 * hidden
    assert wide == 32 * layer_bytes(16) + ends / 16 + 2 * hidden
    assert staged == pytest.approx(11 * layer_bytes(2) + (ends / 2 + 2 * hidden) / 2, rel=1e-12)
