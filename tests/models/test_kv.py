"""Cache and state bytes against the formulas of the papers, and their laws."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.models.architecture import Architecture, DenseFfn, GroupedQueryAttention, Layer, Precisions
from planner.models.kv import kv_bytes, kv_bytes_per_token, state_bytes_per_sequence
from planner.models.library import find_model, list_models
from planner.models.precision import with_precision

PRICED = [model.name for model in list_models() if not find_model(model.name).unsupported_parts()]


def _toy(window_tokens: int = 0, num_kv_heads: int = 4, layers: int = 3) -> Architecture:
    mixer = GroupedQueryAttention(8, num_kv_heads, 16, 16, window_tokens=window_tokens)
    return Architecture("toy", 128, 100, (Layer(mixer, DenseFfn(256)),) * layers, False, 4096, Precisions())


def test_grouped_query_caches_keys_and_values_of_its_kv_heads() -> None:
    assert kv_bytes_per_token(find_model("Llama-3.1-8B")) == 2 * 8 * 128 * 32 * 2 == 131072
    assert kv_bytes_per_token(find_model("facebook/opt-175b")) == 2 * 12288 * 96 * 2  # 4.5 MiB: FlexGen, section 3


def test_latent_attention_caches_one_latent_vector_a_layer() -> None:
    # 70.272 KB a token in bf16: DeepSeek-V3 hardware paper, arXiv:2505.09343, table 1.
    assert kv_bytes_per_token(with_precision(find_model("DeepSeek-V3"), "bf16")) == (512 + 64) * 61 * 2 == 70272


def test_sparse_attention_adds_indexer_keys_where_indexers_are() -> None:
    dense, sparse = find_model("DeepSeek-V3"), find_model("DeepSeek-V3.2")
    assert kv_bytes_per_token(sparse) - kv_bytes_per_token(dense) == 61 * 132
    glm, shared = find_model("GLM-5"), find_model("GLM-5.2")
    assert kv_bytes_per_token(glm) - kv_bytes_per_token(shared) == (78 - 21) * 132


def test_heads_are_divided_and_then_repeated_over_ranks() -> None:
    tp = np.array([1, 2, 3, 4, 8, 16])
    per_head = 2 * 16 * 2 * 3
    np.testing.assert_array_equal(kv_bytes_per_token(_toy(), tp), np.array([4, 2, 2, 1, 1, 1]) * per_head)
    np.testing.assert_array_equal(
        kv_bytes_per_token(find_model("DeepSeek-V3"), tp), np.full(6, kv_bytes_per_token(find_model("DeepSeek-V3")))
    )


def test_a_window_layer_holds_at_most_its_window() -> None:
    contexts = np.array([0, 100, 128, 129, 10_000])
    windowed, full = _toy(window_tokens=128), _toy()
    np.testing.assert_array_equal(kv_bytes(windowed, contexts), kv_bytes(full, np.minimum(contexts, 128)))
    oss = find_model("gpt-oss-120b")
    assert kv_bytes(oss, 131072) == (18 * 131072 + 18 * 128) * 2 * 8 * 64 * 2


def test_lengths_and_ranks_broadcast_against_each_other() -> None:
    contexts, tp = np.array([[100], [5000]]), np.array([1, 2, 4])
    table = kv_bytes(find_model("gpt-oss-20b"), contexts, tp)
    assert table.shape == (2, 3)
    assert table[1, 2] == kv_bytes(find_model("gpt-oss-20b"), 5000, 4)


@pytest.mark.parametrize("name", PRICED)
def test_cache_of_every_priced_model_grows_with_context_and_shrinks_with_ranks(name: str) -> None:
    arch = find_model(name)
    by_context = kv_bytes(arch, np.array([0, 1, 64, 1000, 100_000]))
    assert by_context[0] == 0
    assert np.all(np.diff(by_context) > 0)
    by_rank = kv_bytes(arch, 1000, np.array([1, 2, 4, 8, 16, 64]))
    assert np.all(np.diff(by_rank) <= 0)
    assert np.all(by_rank > 0)
    assert by_context[1] == kv_bytes_per_token(arch)


@given(
    contexts=st.lists(st.integers(0, 300_000), min_size=1, max_size=8),
    window=st.integers(1, 4096),
    kv_heads=st.sampled_from([1, 2, 4, 8]),
    tp=st.sampled_from([1, 2, 4, 8, 16, 32]),
)
def test_arrays_equal_their_elements_and_windows_never_cost_more(
    contexts: list[int], window: int, kv_heads: int, tp: int
) -> None:
    windowed, full = _toy(window, kv_heads), _toy(0, kv_heads)
    array = kv_bytes(windowed, np.array(contexts), tp)
    assert [float(kv_bytes(windowed, context, tp)) for context in contexts] == list(array)
    assert np.all(array <= kv_bytes(full, np.array(contexts), tp))
    assert np.all(array * tp >= kv_bytes(windowed, np.array(contexts), 1))  # ranks together hold every head


def test_fp8_caches_are_half_of_bf16_ones() -> None:
    arch = find_model("Qwen3-32B")
    assert kv_bytes_per_token(with_precision(arch, None, "fp8")) * 2 == kv_bytes_per_token(arch)


def test_a_layer_that_reads_another_layers_cache_stores_none() -> None:
    arch = _toy(layers=1)
    mixer = arch.layers[0].mixer
    assert isinstance(mixer, GroupedQueryAttention)
    sharing = replace(arch, layers=(*arch.layers, Layer(replace(mixer, shares_kv=True), DenseFfn(256))))
    assert kv_bytes_per_token(sharing) == kv_bytes_per_token(arch)


def test_recurrent_state_counts_matrices_and_convolution_inputs() -> None:
    # Qwen3.5-35B-A3B: 30 layers of 32 fp32 matrices of 128 x 128, and 3 inputs of 2*16*128 + 32*128 bf16 channels.
    state = 30 * (32 * 128 * 128 * 4 + 3 * (2 * 16 * 128 + 32 * 128) * 2)
    arch = find_model("Qwen3.5-35B-A3B")
    assert state_bytes_per_sequence(arch) == state
    assert state_bytes_per_sequence(arch, np.array([2, 4]))[1] == state / 4
    assert kv_bytes_per_token(arch) == 10 * 2 * 2 * 256 * 2
    assert state_bytes_per_sequence(find_model("Qwen3-32B")) == 0


def test_mamba_groups_are_resident_at_least_one_a_rank() -> None:
    # Nemotron 3 Nano: 23 layers, 64 heads of 64, state 128, 8 groups, kernel 4.
    def bytes_at(tp: int) -> float:
        heads, groups = 64 / tp, max(1, 8 / tp)
        return 23 * (heads * 64 * 128 * 4 + 3 * (heads * 64 + 2 * groups * 128) * 2)

    arch = find_model("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")
    for tp in (1, 8, 16):
        assert state_bytes_per_sequence(arch, tp) == bytes_at(tp)


def test_the_cache_of_an_unsupported_mixer_is_an_error_with_its_reason() -> None:
    with pytest.raises(PlannerError, match=r"KV cache of .* is not known: DeepSeek-V4"):
        kv_bytes(find_model("DeepSeek-V4-Pro"), 1000)
