"""The backward pass against the forward one, and both against 6 N operations a token."""

from collections.abc import Sequence

import numpy as np
import pytest

from planner.costs.operators.backward import (
    backward_input,
    backward_weight,
    training_operators,
)
from planner.costs.operators.exchanges import MIRRORED
from planner.costs.operators.kernels import (
    AttentionBackward,
    BatchedGemm,
    Collective,
    DecodeAttention,
    Experts,
    Gemm,
    MemoryPass,
    Operator,
    PrefillAttention,
    demand,
)
from planner.costs.operators.work import Shards, Work
from planner.costs.rates.roofline import Roofline
from planner.costs.rates.step import price_operators
from planner.models.library import find_model
from planner.models.parameters import parameter_counts

MODELS = ("meta-llama/Meta-Llama-3.1-8B", "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V3", "openai/gpt-oss-20b")
DENSE = ("meta-llama/Meta-Llama-3.1-8B", "Qwen/Qwen3-32B", "meta-llama/Llama-3.2-1B", "Qwen/Qwen2.5-7B")
Products = Gemm | BatchedGemm | Experts


def _flop(operators: Sequence[Operator], kinds: type | tuple[type, ...] = object) -> float:
    computing = [op for op in operators if isinstance(op, kinds) and not isinstance(op, Collective)]
    return sum(float((demand(op).flop * op.count)[0]) for op in computing)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("tp", [1, 4])
def test_each_gradient_of_a_product_has_the_operations_of_the_product(name: str, tp: int) -> None:
    parts = training_operators(find_model(name), Shards.of(tp, 1, 1, 1, tp), Work.prefill(512.0))
    forward = _flop(parts.forward, (Gemm, BatchedGemm, Experts))
    assert _flop(parts.backward_input, (Gemm, BatchedGemm, Experts)) == pytest.approx(forward, rel=1e-12)
    assert _flop(parts.backward_weight) == pytest.approx(forward, rel=1e-12)


@pytest.mark.parametrize("name", DENSE)
@pytest.mark.parametrize("tokens", [1024.0, 8192.0])
def test_training_does_six_operations_a_parameter_and_token_and_those_of_attention(name: str, tokens: float) -> None:
    arch = find_model(name)
    parts = training_operators(arch, Shards.of(1), Work.prefill(2 * tokens, 0.0, 2.0))
    mixer = arch.layers[0].mixer
    assert mixer is not None
    pairs = 2 * tokens * (tokens + 1) / 2  # two sequences, causal
    per_pair = 2 * mixer.num_heads * 2 * mixer.head_dim  # type: ignore[union-attr]  # all are grouped-query models
    attention = arch.num_layers * pairs * per_pair * (1 + 2.5)
    counts = parameter_counts(arch)
    wanted = 6 * counts.active_without_embedding * 2 * tokens + attention
    total = sum(_flop(part) for part in (parts.forward, parts.backward_input, parts.backward_weight))
    assert total == pytest.approx(wanted, rel=0.01)


def test_gradients_of_a_gemm_have_the_transposed_shapes() -> None:
    m, n, k = np.array([3.0]), np.array([5.0]), np.array([7.0])
    gemm = Gemm("up", 4.0, m, n, k, "fp8_block")
    assert backward_input([gemm]) == [Gemm("up_input_gradient", 4.0, m, k, n, "fp8_block")]
    assert backward_weight([gemm]) == [Gemm("up_weight_gradient", 4.0, k, n, m, "fp8_block")]


def test_the_weight_gradient_under_weight_only_formats_is_a_bf16_product() -> None:
    unit = np.ones(1)
    (gradient,) = backward_weight([Gemm("up", 1.0, unit, unit, unit, "int4")])
    assert isinstance(gradient, Gemm)
    assert gradient.precision == "bf16"


def test_gradients_of_a_batched_gemm_have_the_transposed_shapes() -> None:
    h, m, n, k = (np.array([value]) for value in (2.0, 3.0, 5.0, 7.0))
    op = BatchedGemm("absorbed_query", 1.0, h, m, n, k, "bf16")
    assert backward_input([op]) == [BatchedGemm("absorbed_query_input_gradient", 1.0, h, m, k, n, "bf16")]
    assert backward_weight([op]) == [BatchedGemm("absorbed_query_weight_gradient", 1.0, h, k, n, m, "bf16")]


@pytest.mark.parametrize(("kind", "mirrored"), list(MIRRORED.items()))
def test_collectives_are_mirrored_with_their_buffer(kind: str, mirrored: str) -> None:
    op = Collective("c", 2.0, kind, np.array([1e6]), np.array([8.0]), np.array([2.0]))
    assert backward_input([op]) == [
        Collective("c_input_gradient", 2.0, mirrored, np.array([1e6]), np.array([8.0]), np.array([2.0]))
    ]
    assert backward_weight([op]) == []
    assert MIRRORED[mirrored] == kind


def test_as_many_bytes_are_reduced_backwards_as_forwards() -> None:
    parts = training_operators(find_model("meta-llama/Meta-Llama-3.1-8B"), Shards.of(8), Work.prefill(512.0))

    def hidden_bytes(operators: Sequence[Operator]) -> float:
        reduced = [op for op in operators if isinstance(op, Collective) and not op.name.startswith("loss")]
        return sum(float((op.size_bytes * op.count)[0]) for op in reduced)

    assert hidden_bytes(parts.backward_input) == hidden_bytes(parts.forward) == (2 * 32 + 1) * 512 * 4096 * 2


def test_all_but_the_embedding_and_the_loss_reduction_has_an_input_gradient() -> None:
    parts = training_operators(find_model("meta-llama/Meta-Llama-3.1-8B"), Shards.of(2), Work.prefill(512.0))
    forward = [op.name for op in parts.forward if op.name not in ("embedding", "loss_all_reduce")]
    assert [op.name.removesuffix("_input_gradient") for op in parts.backward_input] == forward[::-1]
    assert "embedding_weight_gradient" in [op.name for op in parts.backward_weight]


def test_attention_alone_has_no_weights() -> None:
    parts = training_operators(find_model("deepseek-ai/DeepSeek-V3.2"), Shards.of(1), Work.prefill(512.0))
    assert any(isinstance(op, AttentionBackward) for op in parts.backward_input)
    kinds = (AttentionBackward, PrefillAttention, DecodeAttention)
    assert not any(isinstance(op, kinds) for op in parts.backward_weight)
    assert not any(isinstance(op, (PrefillAttention, DecodeAttention)) for op in parts.backward_input)


def test_the_loss_covers_every_token_of_the_sharded_vocabulary() -> None:
    parts = training_operators(find_model("meta-llama/Meta-Llama-3.1-8B"), Shards.of(4), Work.prefill(512.0, 0.0, 2.0))
    named = {op.name: op for op in parts.forward}
    logits, loss, reduced = named["logits"], named["cross_entropy"], named["loss_all_reduce"]
    assert isinstance(logits, Gemm)
    assert isinstance(loss, MemoryPass)
    assert isinstance(reduced, Collective)
    assert (logits.m[0], logits.n[0]) == (512.0, 128256 / 4)
    assert loss.size_bytes.tolist() == [512 * 128256 / 4 * 18]
    assert reduced.size_bytes.tolist() == [512 * 4]
    assert not {"sampling", "logits_all_gather"} & set(named)


def test_training_with_decoding_sequences_is_refused() -> None:
    with pytest.raises(ValueError, match="no decoding"):
        training_operators(find_model("meta-llama/Llama-3.2-1B"), Shards.of(1), Work.decode(1.0, 1.0))


def test_large_products_take_three_times_the_forward_time(ideal: Roofline) -> None:
    arch = find_model("meta-llama/Meta-Llama-3.1-8B")
    parts = training_operators(arch, Shards.of(1), Work.prefill(16384.0, 0.0, 16.0))
    forward, inputs, weights = (
        price_operators(part, ideal, 1) for part in (parts.forward, parts.backward_input, parts.backward_weight)
    )
    products = ("qkv", "attention_output", "ffn_up", "ffn_down", "logits")
    for name in products:
        forward_s = forward.by_operator[name]
        assert inputs.by_operator[f"{name}_input_gradient"] == pytest.approx(forward_s)
        assert weights.by_operator[f"{name}_weight_gradient"] == pytest.approx(forward_s)
    assert inputs.seconds > forward.seconds > weights.seconds


def test_gradients_of_many_shapes_ask_for_what_each_alone_does() -> None:
    arch = find_model("Qwen/Qwen3-30B-A3B")
    tp, tokens = np.array([1.0, 2.0, 4.0]), np.array([512.0, 2048.0, 777.0])
    parts = training_operators(arch, Shards.of(tp, 1, 1, 1, tp), Work.prefill(tokens))
    for point in range(3):
        alone = training_operators(arch, Shards.of(tp[point], 1, 1, 1, tp[point]), Work.prefill(tokens[point]))
        for many, single in zip(
            (parts.forward, parts.backward_input, parts.backward_weight),
            (alone.forward, alone.backward_input, alone.backward_weight),
            strict=True,
        ):
            together = sum((demand(op).flop * op.count)[point] for op in many if not isinstance(op, Collective))
            assert together == pytest.approx(_flop(single), rel=1e-12)
