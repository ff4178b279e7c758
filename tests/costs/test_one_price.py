"""Serving and training price one list of operators: what a layer does forward and backward is the same in both."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.costs.operators.attention_core import AttentionCore, causal_pairs
from planner.costs.operators.backward import training_operators
from planner.costs.operators.context import context_part, head_part
from planner.costs.operators.elementwise import EAGER, FUSED, SERVING, cross_entropy, norm, residual
from planner.costs.operators.exchanges import SWEEPS, around, mirrored, sweeps
from planner.costs.operators.experts import distinct_places, sent_copies
from planner.costs.operators.kernels import AttentionBackward, Collective, MemoryPass, Operator, demand
from planner.costs.operators.work import Shards, Work
from planner.costs.rates.collectives import route
from planner.costs.training.config import FRAMEWORKS, TrainingConfig, machine_of
from planner.costs.training.kernels import BACKWARD_INPUT, FORWARD, Kernel
from planner.costs.training.layers.decoder import layer_kernels
from planner.hardware.cluster import Pool
from planner.hardware.library import find_node
from planner.models.architecture import Architecture, GroupedQueryAttention, LatentAttention, Layer, MoeFfn
from planner.models.library import find_model

MACHINE = machine_of(find_node("h100_sxm"))
TOKENS, SEQUENCES = 4096, 2
MODELS = (
    "meta-llama/Meta-Llama-3.1-8B", "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V3", "openai/gpt-oss-20b",
    "google/gemma-3-12b-it", "meta-llama/Llama-4-Scout-17B-16E-Instruct",
)  # fmt: skip
LAYERS = [
    pytest.param(name, layer, id=f"{name.split('/')[1]}-{index}")
    for name in MODELS
    for index, (layer, _) in enumerate(find_model(name).layer_groups())
    if isinstance(layer.mixer, GroupedQueryAttention | LatentAttention)
]


def _served(arch: Architecture, layer: Layer, tp: int) -> tuple[list[Operator], list[Operator]]:
    """Forward operators and gradients of inputs of one layer."""
    own = replace(arch, layers=(layer,), precisions=replace(arch.precisions, kv_cache="bf16"))
    work = Work.prefill(float(TOKENS * SEQUENCES), sequences=SEQUENCES)
    parts = training_operators(own, Shards.of(tp, moe_tp=1, ep=tp), work)
    return parts.forward, parts.backward_input


def _trained(arch: Architecture, layer: Layer, tp: int) -> list[Kernel]:
    framework = replace(FRAMEWORKS["megatron"], sequence_parallel=False)
    config = TrainingConfig(
        arch, MACHINE, TOKENS, 64, SEQUENCES, tp=tp, ep=tp, framework=framework, overlap=frozenset()
    )
    return list(layer_kernels(MACHINE, layer, config.shard))


def _sizes(kernels: Iterable[Kernel], part: int, *, kind: str) -> Iterator[tuple[float, float]]:
    """Operations and bytes of kernels of a kind."""
    for kernel in kernels:
        if kernel.part == part and kernel.kind.partition(".")[0] == kind:
            yield (
                kernel.flop_s * MACHINE.peak_flop_per_s["bf16"],
                kernel.move_s * MACHINE.memory_bandwidth_bytes_per_s,
            )


@pytest.mark.parametrize("tp", [1, 4])
@pytest.mark.parametrize(("model", "layer"), LAYERS)
def test_the_attention_core_is_one_forward_and_backward(model: str, layer: Layer, tp: int) -> None:
    arch = find_model(model)
    forward, backward = _served(arch, layer, tp)
    kernels = _trained(arch, layer, tp)
    for operators, kind, part in ((forward, "attention", FORWARD), (backward, "attention_backward", BACKWARD_INPUT)):
        (op,) = (op for op in operators if op.name.startswith("prefill_attention"))
        assert isinstance(op, AttentionBackward) == (part == BACKWARD_INPUT)
        asked = demand(op)  # type: ignore[arg-type]  # attention
        (trained,) = _sizes(kernels, part, kind=kind)
        assert trained == pytest.approx((float(asked.flop[0]), float(asked.size_bytes[0])))


@pytest.mark.parametrize(("model", "layer"), LAYERS)
def test_passes_that_all_codes_have_move_the_same_bytes_forward_and_backward(model: str, layer: Layer) -> None:
    arch = find_model(model)
    forward, backward = _served(arch, layer, 1)
    kernels = _trained(arch, layer, 1)
    for operators, part in ((forward, FORWARD), (backward, BACKWARD_INPUT)):
        trained = [moved for _, moved in _sizes(kernels, part, kind="elementwise")]
        for op in operators:
            shared = ("rotary_and_cache", "ffn_activation", "shared_expert_activation")
            if isinstance(op, MemoryPass) and op.name.removesuffix("_input_gradient") in shared:
                assert any(moved == pytest.approx(float(op.size_bytes[0])) for moved in trained), op.name


@pytest.mark.parametrize("model", ["meta-llama/Meta-Llama-3.1-8B", "google/gemma-3-12b-it"])
def test_tensor_parallel_ranks_sum_the_same_hidden_states(model: str) -> None:
    arch = find_model(model)
    layer = arch.layers[0]
    forward, backward = _served(arch, layer, 4)
    kernels = _trained(arch, layer, 4)
    for operators, part in ((forward, FORWARD), (backward, BACKWARD_INPUT)):
        reduced = [op for op in operators if isinstance(op, Collective) and op.name.startswith(("attention", "ffn"))]
        sent = sum(float(op.size_bytes[0]) * SWEEPS[op.kind] * 3 / 4 for op in reduced)
        moved = [k.inside_s for k in kernels if k.kind.startswith("tp") and k.part == part]
        assert sum(moved) * MACHINE.link_bytes_per_s == pytest.approx(sent)


def test_a_norm_joined_with_the_residual_reads_the_sum_once_less() -> None:
    apart = [norm(1.0, FUSED), residual(1.0, "mlp", FUSED)]
    joined = norm(1.0, SERVING)
    assert joined.forward.size_bytes == sum(each.forward.size_bytes for each in apart) - 2.0
    assert joined.backward.size_bytes == sum(each.backward.size_bytes for each in apart)
    assert joined.forward.kernels == sum(each.forward.kernels for each in apart) - 1.0
    assert norm(1.0, EAGER).forward.size_bytes > apart[0].forward.size_bytes


def test_the_loss_makes_an_fp32_copy_and_writes_its_gradient_in_16_bits() -> None:
    passed = cross_entropy(1.0)
    assert passed.forward.size_bytes == (2 + 4) + 4 + (4 + 4)
    assert passed.backward.size_bytes == 4 + 2


def test_sequence_parallel_ranks_exchange_as_much_as_an_all_reduce() -> None:
    assert sweeps(around(True)) == sweeps(around(False)) == sweeps(mirrored(around(True))) == 2.0
    assert mirrored(around(True)) == ("reduce_scatter", "all_gather")


@given(ep=st.integers(1, 64), top_k=st.integers(1, 16))
def test_a_token_is_sent_once_to_a_rank_where_copies_are_joined(ep: int, top_k: int) -> None:
    apart = sent_copies(float(ep), top_k, 64, once=False)
    joined = sent_copies(float(ep), top_k, 64, once=True)
    assert apart == top_k
    assert joined <= min(ep, top_k) + 1e-9
    assert joined >= 1.0 - 1e-9


def test_forwarded_tokens_cross_between_domains_as_often_as_in_serving() -> None:
    """Sixteen ranks in two nodes: bytes that leave a node, dispatched and combined, by the collectives of serving."""
    arch = find_model("Qwen/Qwen3-30B-A3B")
    ffn = arch.layers[0].ffn
    assert isinstance(ffn, MoeFfn)
    config = TrainingConfig(arch, MACHINE, TOKENS, 64, 1, ep=16, dp=16)
    kernels = [k for k in layer_kernels(MACHINE, arch.layers[0], config.shard) if k.kind == "ep" and k.part == FORWARD]
    rows = np.array([TOKENS * arch.hidden_size * 2.0])
    copies = distinct_places(np.array([16.0]), ffn.experts_per_token, ffn.num_experts)
    ones, group = np.ones(1), np.array([16.0])
    sent = Collective(
        "dispatch", 1.0, "all_to_all", rows * copies, group, ones,
        choices=ffn.experts_per_token, among=ffn.num_experts, forwarded=ones,
    )  # fmt: skip
    served = route(sent, Pool("pool", find_node("h100_sxm"), 2).topology())
    assert sum(kernel.outside_s for kernel in kernels) == pytest.approx(2 * float(served.outside_s[0]))


@pytest.mark.parametrize(("cp", "window"), [(2, 1024), (4, 4096), (4, 0), (8, 700)])
def test_the_middle_rank_attends_to_as_many_tokens_as_the_busiest(cp: int, window: int) -> None:
    """Against pairs counted token by token, each rank with a chunk from either end."""
    tokens = 16 * 2 * cp
    window = window * tokens // 8192
    position = np.arange(tokens)
    pairs = np.minimum(position + 1, window) if window else position + 1
    chunks = pairs.reshape(2 * cp, -1).sum(axis=1)
    busiest = max(chunks[rank] + chunks[2 * cp - 1 - rank] for rank in range(cp))
    own, front = context_part(float(tokens), cp)
    assert float(causal_pairs(own, front, window)) == pytest.approx(busiest)


def test_heads_spread_over_context_ranks_keep_one_of_keys() -> None:
    part = head_part(AttentionCore(8.0, 2.0, 128, 128), 4)
    assert (part.heads, part.kv_heads) == (2.0, 1.0)
