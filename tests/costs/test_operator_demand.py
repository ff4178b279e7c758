"""Operations and bytes of each operator against counts made by hand or by drawing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.arrays import Floats
from planner.costs.operators.attention_core import causal_pairs
from planner.costs.operators.kernels import (
    AttentionBackward,
    BatchedGemm,
    DecodeAttention,
    Experts,
    Gemm,
    MemoryPass,
    PrefillAttention,
    Recurrence,
    Scores,
    demand,
)


def _array(*values: float) -> Floats:
    return np.array(values, dtype=np.float64)


def _prefill(new: float, context: float, *, window: int = 0, sequences: float = 1.0) -> PrefillAttention:
    return PrefillAttention(
        "prefill",
        1.0,
        _array(sequences),
        _array(new),
        _array(context),
        _array(8.0),
        _array(2.0),
        64,
        64,
        window,
        "bf16",
    )


def _decode(context: float, *, window: int = 0, precision: str = "bf16") -> DecodeAttention:
    return DecodeAttention(
        "decode", 1.0, _array(4.0), _array(context), _array(8.0), _array(2.0), 64, 64, window, precision
    )


def test_a_gemm_multiplies_and_moves_its_three_matrices() -> None:
    asked = demand(Gemm("g", 1.0, _array(3.0), _array(5.0), _array(7.0), "bf16"))
    assert asked.flop == pytest.approx([2 * 3 * 5 * 7])
    assert asked.size_bytes == pytest.approx([2 * (5 * 7 + 3 * 7 + 3 * 5)])
    assert asked.precision == "bf16"


def test_an_fp8_gemm_reads_one_byte_a_value_and_writes_two() -> None:
    asked = demand(Gemm("g", 1.0, _array(3.0), _array(5.0), _array(7.0), "fp8"))
    assert asked.size_bytes == pytest.approx([5 * 7 + 3 * 7 + 2 * 3 * 5])
    assert asked.precision == "fp8"


def test_weight_only_formats_compute_in_bf16() -> None:
    asked = demand(Gemm("g", 1.0, _array(3.0), _array(64.0), _array(64.0), "int4"))
    assert asked.precision == "bf16"
    assert asked.size_bytes == pytest.approx([64 * 64 * 4.5 / 8 + 2 * 3 * 64 + 2 * 3 * 64])


def test_a_batched_gemm_has_a_weight_for_each_product() -> None:
    asked = demand(BatchedGemm("b", 1.0, _array(4.0), _array(3.0), _array(5.0), _array(7.0), "bf16"))
    assert asked.flop == pytest.approx([4 * 2 * 3 * 5 * 7])
    assert asked.size_bytes == pytest.approx([4 * 2 * (5 * 7 + 3 * 7 + 3 * 5)])


def test_causal_prefill_of_four_tokens_scores_ten_pairs() -> None:
    asked = demand(_prefill(4.0, 0.0, sequences=3.0))
    assert asked.flop == pytest.approx([3 * 8 * 10 * 2 * (64 + 64)])  # scores and weighted values
    assert asked.size_bytes == pytest.approx([3 * (4 * 2 * (64 + 64) * 2 + 4 * 8 * (64 + 64) * 2)])


def test_prefill_behind_a_context_reads_the_whole_cache_once() -> None:
    asked = demand(_prefill(4.0, 100.0))
    assert asked.flop == pytest.approx([8 * (4 * 100 + 10) * 2 * (64 + 64)])
    assert asked.size_bytes == pytest.approx([104 * 2 * (64 + 64) * 2 + 4 * 8 * (64 + 64) * 2])


@given(new=st.integers(1, 60), context=st.integers(0, 60), window=st.integers(0, 40))
def test_windowed_pairs_are_those_counted_one_by_one(new: int, context: int, window: int) -> None:
    seen = [position + 1 for position in range(context, context + new)]
    counted = sum(min(tokens, window) if window else tokens for tokens in seen)
    assert causal_pairs(_array(new), _array(context), window) == pytest.approx([counted])
    flop = demand(_prefill(new, context, window=window)).flop
    assert flop == pytest.approx([8 * counted * 2 * (64 + 64)])


def test_decoding_reads_keys_and_values_of_the_kv_heads_alone() -> None:
    asked = demand(_decode(100.0))
    assert asked.flop == pytest.approx([4 * 8 * 100 * 2 * (64 + 64)])
    assert asked.size_bytes == pytest.approx([4 * (100 * 2 * (64 + 64) * 2 + 8 * (64 + 64) * 2)])


def test_an_fp8_cache_halves_the_bytes_of_the_cache() -> None:
    cache = 4 * 100 * 2 * (64 + 64) * 2
    difference = demand(_decode(100.0)).size_bytes - demand(_decode(100.0, precision="fp8")).size_bytes
    assert difference == pytest.approx([cache / 2])


@given(context=st.integers(1, 500), window=st.integers(1, 500))
def test_a_window_bounds_what_decoding_reads(context: int, window: int) -> None:
    assert demand(_decode(context, window=window)) == demand(_decode(min(context, window)))


def test_latent_decoding_reads_576_values_a_token_once_for_all_heads() -> None:
    def read(context: float) -> Floats:
        op = DecodeAttention(
            "d", 1.0, _array(1.0), _array(context), _array(128.0), _array(1.0), 576, 512, 0, "bf16", latent=True
        )
        return demand(op).size_bytes

    assert read(1001.0) - read(1000.0) == pytest.approx([576 * 2])


def test_the_backward_pass_of_attention_has_five_products_for_two() -> None:
    forward = _prefill(64.0, 0.0)
    asked, once = demand(AttentionBackward("b", 1.0, forward)), demand(forward)
    assert asked.flop == pytest.approx(2.5 * once.flop)
    assert asked.size_bytes == pytest.approx(2.0 * once.size_bytes)


def test_backward_products_are_as_deep_as_keys_three_times_and_as_values_twice() -> None:
    latent = PrefillAttention(
        "p", 1.0, _array(1.0), _array(2.0), _array(0.0), _array(1.0), _array(1.0), 192, 128, 0, "bf16", latent=True
    )
    assert demand(AttentionBackward("b", 1.0, latent)).flop == pytest.approx([2 * 3 * (3 * 192 + 2 * 128)])


def _experts(tokens: float, *, num_experts: int = 32, top_k: int = 4, ep: float = 1.0, moe_tp: float = 1.0) -> Experts:
    return Experts(
        "e", 1.0, _array(tokens), _array(moe_tp), _array(ep), 64, 16, top_k, num_experts, True, "bf16", "bf16"
    )


def test_every_routed_token_passes_three_matrices_of_its_experts() -> None:
    asked = demand(_experts(10.0, ep=2.0, moe_tp=4.0))
    assert asked.flop == pytest.approx([10 * 4 / 2 * 3 * 2 * 64 * (16 / 4)])


@pytest.mark.parametrize("tokens", [1, 5, 40])
def test_touched_experts_agree_with_drawing_them(tokens: int) -> None:
    num_experts, top_k, draws = 32, 4, 4000
    rng = np.random.default_rng(tokens)
    order = rng.random((draws, tokens, num_experts)).argsort(axis=-1)[..., :top_k].reshape(draws, -1)
    drawn = np.mean([len(np.unique(row)) for row in order])
    routed = tokens * top_k
    weights = demand(_experts(tokens)).size_bytes[0] - routed * (64 * 4 + 2 * 2 * 16)
    assert weights / (3 * 64 * 16 * 2) == pytest.approx(drawn, rel=0.01)


def test_one_token_touches_exactly_its_own_experts() -> None:
    matrices = 3 * 64 * 16 * 2
    assert demand(_experts(1.0)).size_bytes == pytest.approx([4 * matrices + 4 * (64 * 4 + 2 * 2 * 16)])


def test_a_scan_reads_and_writes_the_state_of_every_sequence() -> None:
    asked = demand(Recurrence("r", 1.0, _array(10.0), _array(2.0), _array(300.0), _array(4096.0)))
    assert asked.flop == pytest.approx([3000.0])
    assert asked.size_bytes == pytest.approx([2 * 2 * 4096.0])


def test_the_scorer_multiplies_every_pair_in_every_head_and_reads_each_key_once() -> None:
    asked = demand(Scores("s", 1.0, _array(1000.0), _array(200.0), 64, 128))
    assert asked.flop == pytest.approx([2 * 1000 * 64 * 128])
    assert asked.size_bytes == pytest.approx([200 * 128 + 4 * 1000])
    assert asked.precision == "fp8"


def test_an_elementwise_pass_only_moves() -> None:
    asked = demand(MemoryPass("m", 1.0, _array(512.0), 3.0))
    assert (asked.flop.tolist(), asked.size_bytes.tolist(), asked.kernels) == ([0.0], [512.0], 3.0)
