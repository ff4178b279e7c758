"""Every operator of a forward step against sizes written down by hand from the models' published configurations."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from planner.arrays import Floats
from planner.costs.operators.experts import distinct_places, touched_share
from planner.costs.operators.forward import exchange_copies, forward
from planner.costs.operators.kernels import (
    BatchedGemm,
    Collective,
    Gemm,
    MemoryPass,
    Operator,
    Recurrence,
)
from planner.costs.operators.work import Shards, Work
from planner.models.architecture import Architecture, DenseFfn, Layer, LinearAttention
from planner.models.library import find_model

Sizes = tuple[float, ...]


def sizes_of(op: Operator) -> Sizes:
    """Runs, then rows, columns and depth of a product; bytes and kernels of a pass; bytes, ranks and stride else."""
    parts: tuple[Floats | float, ...] = ()
    match op:
        case Gemm():
            parts = (op.count, op.m, op.n, op.k)
        case BatchedGemm():
            parts = (op.count, op.batch, op.m, op.n, op.k)
        case MemoryPass():
            parts = (op.count, op.size_bytes, op.kernels)
        case Collective():
            parts = (op.count, op.size_bytes, op.group, op.stride)
        case Recurrence():
            parts = (op.count, op.tokens, op.sequences, op.flop_per_token, op.state_bytes)
    return tuple(float(np.ravel(part)[0]) for part in parts)


def sizes_by_name(operators: Iterable[Operator]) -> dict[str, Sizes]:
    """Sizes of all operators by name; runs of equal ones in different layers added up."""
    sizes: dict[str, Sizes] = {}
    for op in operators:
        count, *rest = sizes_of(op) or (0.0,)
        if rest:
            before = sizes.setdefault(op.name, (0.0, *rest))
            assert before[1:] == tuple(rest)
            sizes[op.name] = (before[0] + count, *rest)
    return sizes


def check(arch: Architecture, shards: Shards, work: Work, wanted: dict[str, Sizes]) -> None:
    sizes = sizes_by_name(forward(arch, shards, work))
    assert sizes.keys() == wanted.keys()
    for name, numbers in wanted.items():
        assert sizes[name] == pytest.approx(numbers, rel=1e-12), name


def test_llama_3_1_8b_on_two_ranks() -> None:
    """Three tokens of one prompt and four decoding sequences: 7 new tokens, 5 of them sampled."""
    tokens, sampled, hidden, inner, vocab = 7, 5, 4096, 14336, 128256
    queries, keys = 16 * 128, 2 * 4 * 128  # of a rank: half of 32 heads, half of 8 key-value heads
    check(
        find_model("meta-llama/Meta-Llama-3.1-8B"),
        Shards.of(2),
        Work.of(3.0, 1.0, 0.0, 4.0, 100.0),
        {
            "embedding": (1, 2 * 2 * tokens * hidden, 1),
            "embedding_all_reduce": (1, 2 * tokens * hidden, 2, 1),
            "logits": (1, sampled, vocab / 2, hidden),
            "logits_all_gather": (1, 2 * sampled * vocab, 2, 1),
            "sampling": (1, 12 * sampled * vocab, 4),
            "qkv": (32, tokens, queries + keys, hidden),
            "rotary_and_cache": (32, 2 * 2 * tokens * (queries + keys), 1),
            "attention_output": (32, tokens, hidden, queries),
            "attention_all_reduce": (32, 2 * tokens * hidden, 2, 1),
            "ffn_up": (32, tokens, 2 * inner / 2, hidden),
            "ffn_activation": (32, 2 * tokens * 3 * inner / 2, 1),
            "ffn_down": (32, tokens, hidden, inner / 2),
            "ffn_all_reduce": (32, 2 * tokens * hidden, 2, 1),
            "norm": (64, 4 * 2 * tokens * hidden, 1),
        },
    )


def test_deepseek_v3_on_sixteen_ranks_with_experts_of_their_own() -> None:
    """DeepSeek-V3 (arXiv:2412.19437, section 4.2): 10 decoding sequences a rank, 16 experts of 256 on each."""
    tokens, hidden, vocab, heads = 10, 7168, 129280, 128
    copies = float(distinct_places(np.array([16.0]), 8, 256)[0])
    check(
        find_model("deepseek-ai/DeepSeek-V3"),
        Shards.of(1, 1, 16, 1, 16),
        Work.decode(10.0, 100.0),
        {
            "embedding": (1, 2 * 2 * tokens * hidden, 1),
            "logits": (1, tokens, vocab, hidden),
            "logits_all_gather": (1, 2 * tokens * vocab, 1, 1),
            "sampling": (1, 12 * tokens * vocab, 4),
            "q_and_kv_down": (61, tokens, 1536 + 512 + 64, hidden),
            "latent_norms": (61, 2 * 2 * tokens * (1536 + 512), 2),
            "q_up": (61, tokens, heads * (128 + 64), 1536),
            "rotary_and_cache": (61, 2 * 2 * tokens * (heads * (128 + 64) + 512 + 64), 2),
            "absorbed_query": (61, heads, tokens, 512, 128),
            "absorbed_value": (61, heads, tokens, 128, 512),
            "attention_output": (61, tokens, hidden, heads * 128),
            "ffn_up": (3, tokens, 2 * 18432, hidden),
            "ffn_activation": (3, 2 * tokens * 3 * 18432, 1),
            "ffn_down": (3, tokens, hidden, 18432),
            "norm": (122, 4 * 2 * tokens * hidden, 1),
            "router": (58, tokens, 256, hidden),
            "router_top_k": (58, 8 * tokens * 256, 2),
            "shared_expert_up": (58, tokens, 2 * 2048, hidden),
            "shared_expert_activation": (58, 2 * tokens * 3 * 2048, 1),
            "shared_expert_down": (58, tokens, hidden, 2048),
            "dispatch": (58, copies * tokens * hidden, 16, 1),
            "combine": (58, 2 * copies * tokens * hidden, 16, 1),
            "moe_all_gather": (58, 2 * tokens * hidden, 1, 1),
            "expert_combine": (58, 2 * tokens * (8 + 1) * hidden, 2),
        },
    )


@pytest.mark.parametrize(("moe_tp", "ep"), [(2, 8), (8, 2), (16, 1)])
def test_tokens_of_all_ranks_are_gathered_where_experts_are_split(moe_tp: int, ep: int) -> None:
    """DeepSeek-V3 on 16 attention ranks: a rank with a part of an expert sees every token that chose it."""
    tokens = 128
    operators = forward(
        find_model("deepseek-ai/DeepSeek-V3"), Shards.of(1, 1, 16, moe_tp, ep), Work.decode(128.0, 3000.0)
    )
    sizes = sizes_by_name(operators)
    assert not sizes.keys() & {"dispatch", "combine"}
    for name in ("moe_all_gather_tokens", "moe_reduce_scatter"):
        assert sizes[name] == pytest.approx((58, 2 * 16 * tokens * 7168, 16, 1), rel=1e-12)


def test_the_scorer_of_sparse_attention_is_whole_on_every_rank() -> None:
    """GLM-5: 32 heads of 128 for queries and one for keys, rotated by half, transformed, and quantised to 8 bits."""
    tokens = 10
    operators = forward(find_model("zai-org/GLM-5"), Shards.of(8), Work.decode(float(tokens), 3000.0))
    sizes = {op.name: sizes_of(op) for op in operators}
    assert sizes["indexer_query"] == (75, tokens, 32 * 128, 2048)
    assert sizes["indexer_key"] == (75, tokens, 128 + 32, 6144)
    passes = 2 * (0.5 + 0.5 + 1.0) + 1.5
    assert sizes["indexer_inputs"] == (75, 2 * passes * tokens * (32 + 1) * 128, 11)
    assert sizes["indexer_top_k"] == (75, 2 * 4 * tokens * 3000, 1)


def test_a_gated_delta_net_on_two_ranks() -> None:
    """Two sequences decode and one prompt of 6 tokens is scanned in blocks of 64 (arXiv:2312.06635, section 4)."""
    mixer = LinearAttention("gated_delta", 4, 8, 64, 32, conv_kernel=4)
    arch = replace(find_model("meta-llama/Meta-Llama-3.1-8B"), layers=(Layer(mixer, DenseFfn(512)),) * 3)
    work = Work.of(6.0, 1.0, 0.0, 2.0, 100.0)
    sizes = {op.name: sizes_of(op) for op in forward(arch, Shards.of(2), work)}
    tokens, values, keys = 8, 4 * 32, 2 * 2 * 64  # of a rank: half of the heads
    assert sizes["mixer_input"] == (3, tokens, keys + 2 * values + 2 * 4, 4096)
    assert sizes["convolution"] == (3, 2 * 2 * tokens * (keys + values), 1)
    assert sizes["state_scan"] == (3, tokens, 3, 4 * 2 * (2 * 32 * (64 + 64) + 64 * 64), 4 * 4 * 64 * 32)
    assert sizes["mixer_gate_and_norm"] == (3, 3 * 2 * tokens * values, 2)
    assert sizes["mixer_output"] == (3, tokens, 4096, values)


def test_drafts_write_a_state_each_and_read_it_once() -> None:
    mixer = LinearAttention("gated_delta", 4, 8, 64, 32, conv_kernel=0)
    arch = replace(find_model("meta-llama/Meta-Llama-3.1-8B"), layers=(Layer(mixer, DenseFfn(512)),))
    sizes = {op.name: sizes_of(op) for op in forward(arch, Shards.of(1), Work.decode(2.0, 100.0).with_drafts(3.0))}
    read_and_written = 2 + (2 * 4)  # one read a sequence, one write a token
    assert sizes["state_scan"][2] == read_and_written / 2
    assert "convolution" not in sizes


def test_latent_prefill_expands_the_keys_of_new_and_cached_tokens() -> None:
    arch = find_model("deepseek-ai/DeepSeek-V3")
    sizes = sizes_by_name(forward(arch, Shards.of(4), Work.prefill(300.0, 50.0, 3.0)))
    assert sizes["kv_up"] == (61, 300 + 3 * 50, 128 / 4 * (128 + 128), 512)
    assert not {"absorbed_query", "absorbed_value"} & set(sizes)


def test_an_exchange_that_the_network_makes_copies_tokens_on_both_sides() -> None:
    """Each copy is written where it leaves, written by the network, and read: three passes, in 8 bits and in 16."""
    arch, tokens = find_model("deepseek-ai/DeepSeek-V3"), np.array([10.0])
    copies = float(distinct_places(np.array([16.0]), 8, 256)[0])
    sizes = {op.name: sizes_of(op) for op in exchange_copies(arch, Shards.of(1, 1, 16, 1, 16), tokens)}
    rows = copies * 10 * 7168
    assert sizes["dispatch_copies"] == pytest.approx((58, 3 * rows, 2), rel=1e-12)
    assert sizes["combine_copies"] == pytest.approx((58, 6 * rows, 2), rel=1e-12)


@pytest.mark.parametrize(("places", "choices", "among"), [(4, 2, 8), (2, 3, 8), (8, 1, 8), (4, 2.5, 8)])
def test_places_of_a_choice_are_those_of_all_equally_likely_ones(places: int, choices: float, among: int) -> None:
    from itertools import combinations

    def mean(count: int) -> float:
        chosen = [len({expert // (among // places) for expert in some}) for some in combinations(range(among), count)]
        return sum(chosen) / len(chosen)

    share = choices - int(choices)
    wanted = (1 - share) * mean(int(choices)) + (share * mean(int(choices) + 1) if share else 0.0)
    assert distinct_places(np.array([float(places)]), choices, among) == pytest.approx([wanted])


def test_popular_experts_are_touched_by_fewer_tokens_than_equal_ones() -> None:
    """Counts with gamma popularities of shape c are negative binomial: none with probability (1 + T k / (E c))^-c."""
    few = np.array([16.0])
    assert touched_share(few, 2, 8) == pytest.approx([1 - (1 - 2 / 8) ** 16])
    assert touched_share(few, 2, 8, 0.5) == pytest.approx([1 - (1 + 16 * 2 / (8 * 0.5)) ** -0.5])
    assert touched_share(np.array([0.0, 1.0]), 8, 8).tolist() == [0.0, 1.0]
