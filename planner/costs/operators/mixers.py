"""Operators of token mixers in a step: grouped-query, multi-head latent and linear attention."""

from collections.abc import Iterator

import numpy as np

from planner.arrays import Floats
from planner.costs.operators.attention_core import CORE, AttentionCore, attention_core, causal_pairs
from planner.costs.operators.elementwise import (
    SERVING,
    convolution,
    gate_and_norm,
    indexer_inputs,
    latent_norms,
    rotation,
)
from planner.costs.operators.kernels import (
    DECODING,
    PROMPTS,
    BatchedGemm,
    DecodeAttention,
    Gemm,
    MemoryPass,
    Operator,
    PrefillAttention,
    Recurrence,
    Scores,
    activation_precision,
    run_of,
)
from planner.costs.operators.products import mixer_products, rotated_values, scan_widths
from planner.costs.operators.step import Step, all_reduce, gemm, product
from planner.models.architecture import GroupedQueryAttention, LatentAttention, LinearAttention, Mixer


def mixer_operators(step: Step, mixer: Mixer, count: float) -> Iterator[Operator]:
    """Operators of `count` such mixers, with the all-reduce behind them."""
    match mixer:
        case GroupedQueryAttention():
            yield from _grouped(step, mixer, count)
        case LatentAttention():
            yield from _latent(step, mixer, count)
        case LinearAttention():
            yield from _linear(step, mixer, count)


def _per_sequence(step: Step) -> Floats:
    return step.work.prefill_tokens / np.maximum(step.work.prefill_sequences, 1.0)


def _grouped(step: Step, mixer: GroupedQueryAttention, count: float) -> Iterator[Operator]:
    precision, products = step.arch.precisions.attention, mixer_products(mixer, step.arch.hidden_size, step.shards.tp)
    core = attention_core(mixer, step.shards.tp)
    heads, kv_heads = np.asarray(core.heads), np.asarray(core.kv_heads)
    yield product(step, products, "qkv", count, precision)
    if mixer.q_rank:
        yield product(step, products, "q_up", count, precision)
    kernels = 2.0 if mixer.qk_norm or mixer.qk_norm_full else 1.0
    yield run_of(rotation(step.tokens * rotated_values(mixer, step.shards.tp), kernels, SERVING), count)
    kv, work = step.arch.precisions.kv_cache, step.work
    if np.any(work.prefill_sequences > 0):
        yield PrefillAttention(
            "prefill_attention", count, work.prefill_sequences, _per_sequence(step), work.prefill_context,
            heads, kv_heads, core.head_dim, core.v_head_dim, core.window, kv, chunked=core.chunked,
            module=CORE,
        )  # fmt: skip
    if np.any(work.decode_sequences > 0):
        yield DecodeAttention(
            "decode_attention", count, work.decode_sequences, work.decode_context,
            heads, kv_heads, core.head_dim, core.v_head_dim, core.window, kv, chunked=core.chunked,
            queries=work.queries, module=CORE,
        )  # fmt: skip
    yield product(step, products, "attention_output", count, step.arch.precisions.output_projection)
    yield from all_reduce(step, "attention_all_reduce", count)


def _latent(step: Step, mixer: LatentAttention, count: float) -> Iterator[Operator]:
    """Multi-head latent attention; prefill expands keys and values, decode absorbs the up-projections."""
    precision, work = step.arch.precisions.attention, step.work
    products = mixer_products(mixer, step.arch.hidden_size, step.shards.tp)
    core = attention_core(mixer, step.shards.tp)
    heads = np.asarray(core.heads)
    yield product(step, products, "q_and_kv_down", count, precision)
    yield run_of(latent_norms(step.tokens, mixer.q_lora_rank, mixer.kv_lora_rank), count)
    if mixer.q_lora_rank:
        yield product(step, products, "q_up", count, precision)
    yield run_of(rotation(step.tokens * rotated_values(mixer, step.shards.tp), 2.0, SERVING), count)
    if mixer.indexer is not None and not mixer.indexer.shared:
        yield from _indexer(step, mixer, count)
    if np.any(work.prefill_sequences > 0):
        yield from _latent_prefill(step, mixer, core, count)
    if np.any(work.decode_sequences > 0):
        yield from _latent_decode(step, mixer, count, heads)
    if mixer.output_gate:
        yield product(step, products, "output_gate", count, precision)
    yield product(step, products, "attention_output", count, step.arch.precisions.output_projection)
    yield from all_reduce(step, "attention_all_reduce", count)


def _selected(mixer: LatentAttention, context: Floats) -> Floats:
    return context if mixer.indexer is None else np.minimum(context, float(mixer.indexer.top_k))


def _latent_prefill(step: Step, mixer: LatentAttention, core: AttentionCore, count: float) -> Iterator[Operator]:
    work, kv, heads = step.work, step.arch.precisions.kv_cache, np.asarray(core.heads)
    if mixer.indexer is not None:  # sparse prefill attends in the latent space, to at most top_k tokens each
        new = np.maximum(_per_sequence(step), 1.0)
        average = causal_pairs(new, work.prefill_context, float(mixer.indexer.top_k)) / new
        tokens = work.prefill_tokens
        yield from _absorbed(step, mixer, count, heads, "prefill_attention", tokens, average, None, PROMPTS)
        return
    expanded = work.prefill_tokens + work.prefill_context * work.prefill_sequences
    width = heads * (mixer.qk_nope_head_dim + mixer.v_head_dim)
    rank = step.one * mixer.kv_lora_rank
    yield Gemm("kv_up", count, expanded, width, rank, step.arch.precisions.attention, "mla_up_projection")
    yield PrefillAttention(
        "prefill_attention", count, work.prefill_sequences, _per_sequence(step), work.prefill_context, heads, heads,
        core.head_dim, core.v_head_dim, 0, kv, latent=True, module=CORE,
    )  # fmt: skip


def _latent_decode(step: Step, mixer: LatentAttention, count: float, heads: Floats) -> Iterator[Operator]:
    """Drafts share what they read of the cache, unless each selects tokens of its own."""
    work, context = step.work, _selected(mixer, step.work.decode_context)
    if mixer.indexer is None:
        yield from _absorbed(
            step, mixer, count, heads, "decode_attention", work.decode_sequences, context, work.queries
        )
    else:
        tokens = work.decode_tokens
        yield from _absorbed(step, mixer, count, heads, "decode_attention", tokens, context, None, DECODING)


def _absorbed(
    step: Step, mixer: LatentAttention, count: float, heads: Floats, name: str, sequences: Floats,
    context: Floats, queries: Floats | None, sparse: str = "",
) -> Iterator[Operator]:  # fmt: skip
    """Attention in the latent space to `context` cached tokens of each sequence, up-projections absorbed."""
    arch, nope, rank, value = step.arch, mixer.qk_nope_head_dim, mixer.kv_lora_rank, mixer.v_head_dim
    absorbed = activation_precision(arch.precisions.attention)
    tokens = sequences if queries is None else sequences * queries
    yield BatchedGemm("absorbed_query", count, heads, tokens, step.one * rank, step.one * nope, absorbed)
    yield DecodeAttention(
        name, count, sequences, context, heads, step.one,
        rank + mixer.qk_rope_head_dim, rank, 0, arch.precisions.kv_cache, latent=True, queries=queries,
        sparse=sparse, module=CORE,
    )  # fmt: skip
    yield BatchedGemm("absorbed_value", count, heads, tokens, step.one * value, step.one * rank, absorbed)


def _indexer(step: Step, mixer: LatentAttention, count: float) -> Iterator[Operator]:
    """DeepSeek-V3.2 section 2.1: query heads from the compressed query, one key per token, fp8 scores, top-k.

    Whole on every tensor-parallel rank, as all of them need the selection (`ReplicatedLinear` of SGLang's nsa_indexer).
    """
    indexer, work, precision = mixer.indexer, step.work, step.arch.precisions.attention
    assert indexer is not None
    yield gemm(step, "indexer_query", count, indexer.num_heads * indexer.head_dim, mixer.q_lora_rank, precision)
    yield gemm(step, "indexer_key", count, indexer.head_dim + indexer.num_heads, step.arch.hidden_size, "bf16")
    yield run_of(indexer_inputs(step.tokens * (indexer.num_heads + 1) * indexer.head_dim), count)
    new = _per_sequence(step)
    prefill_pairs = work.prefill_sequences * causal_pairs(new, work.prefill_context)
    pairs = prefill_pairs + work.decode_tokens * work.decode_context
    keys = work.prefill_sequences * (work.prefill_context + new) + work.decode_sequences * work.decode_context
    yield Scores("indexer_scores", count, pairs, keys, indexer.num_heads, indexer.head_dim)
    yield MemoryPass("indexer_top_k", count, pairs * 4.0 * 2.0, 1.0)


def _linear(step: Step, mixer: LinearAttention, count: float) -> Iterator[Operator]:
    """A recurrent mixer: input projections, short convolution, state update, output projection."""
    precision, work = step.arch.precisions.attention, step.work
    products = mixer_products(mixer, step.arch.hidden_size, step.shards.tp)
    keys, values, flop, state = scan_widths(mixer, step.shards.tp)
    yield product(step, products, "mixer_input", count, precision)
    if mixer.conv_kernel:
        yield run_of(convolution(step.tokens * (keys + values)), count)
    kept = (work.decode_tokens - work.decode_sequences) / 2.0  # the state behind each draft is written, not read
    yield Recurrence("state_scan", count, step.tokens, work.sequences + kept, np.asarray(flop), np.asarray(state), CORE)
    yield run_of(gate_and_norm(step.tokens * values), count)
    yield product(step, products, "mixer_output", count, precision)
    yield from all_reduce(step, "attention_all_reduce", count)
