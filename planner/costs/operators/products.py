"""The matrices of a layer that tokens are multiplied with, on one rank: one list for serving steps and training layers.

Rows are those of `planner.models.parameters`, split as Megatron-LM and the serving engines split them: heads over
tensor-parallel ranks, at least one a rank. What reads the same input under one name is one product where an engine
serves (vLLM's fused projections), and a product each in training. Degrees are numbers, or arrays [N] over shards.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from planner.arrays import Floats
from planner.models.architecture import (
    GroupedQueryAttention,
    LatentAttention,
    LinearAttention,
    Mixer,
    MoeFfn,
    UnsupportedMixer,
)

Size = Floats | float
Sized = TypeVar("Sized", Floats, float)
SCAN_CHUNK_TOKENS = 64
"""Chunked linear attention works on blocks of this many tokens (GLA, arXiv:2312.06635, section 4)."""
SCAN_BACKWARD = 2.0
"""Operations and bytes of its gradients for one of the forward pass: a product of two activations has two."""
_STEP_SIZES = {"mamba2": 1.0}
"""Columns a head beside values and keys: one step size in Mamba-2 (arXiv:2405.21060), elsewhere beta and decay."""


@dataclass(frozen=True, slots=True)
class Projection:
    """A product [tokens, depth] x [depth, columns]."""

    name: str
    module: str  # by which recomputation names it
    depth: Size
    columns: Size
    adapted: bool = False  # LoRA has an adapter beside it


def gradient_sizes(m: Sized, n: Sized, k: Sized) -> tuple[tuple[Sized, Sized, Sized], tuple[Sized, Sized, Sized]]:
    """Rows, columns and depth of the gradients of a product [m, k] x [k, n]: of its input, and of its weights."""
    return (m, k, n), (k, n, m)


def ranked(count: int, tp: Size) -> Size:
    """Heads of a rank, of which each has at least one."""
    return np.maximum(count / tp, 1.0) if isinstance(tp, np.ndarray) else max(count / tp, 1.0)


def mixer_products(mixer: Mixer, hidden: int, tp: Size) -> tuple[Projection, ...]:
    """The products of a token mixer in the order in which a token meets them; its output stands last."""
    match mixer:
        case GroupedQueryAttention():
            return tuple(_grouped(mixer, hidden, tp))
        case LatentAttention():
            return tuple(_latent(mixer, hidden, tp))
        case LinearAttention():
            return tuple(_linear(mixer, hidden, tp))
        case UnsupportedMixer():
            return ()


def _grouped(mixer: GroupedQueryAttention, hidden: int, tp: Size) -> Iterator[Projection]:
    heads, outputs = ranked(mixer.num_heads, tp), ranked(mixer.num_heads, tp) * mixer.v_head_dim
    queries = heads * mixer.head_dim + (outputs if mixer.output_gate else 0.0)
    values = 0 if mixer.values_are_keys else mixer.v_head_dim
    keys = 0.0 if mixer.shares_kv else ranked(mixer.num_kv_heads, tp) * (mixer.head_dim + values)
    yield Projection("qkv", "attention", hidden, keys + (mixer.q_rank or queries), adapted=True)
    if mixer.q_rank:
        yield Projection("q_up", "attention", mixer.q_rank, queries)
    yield Projection("attention_output", "attention", outputs, hidden, adapted=True)


def _latent(mixer: LatentAttention, hidden: int, tp: Size) -> Iterator[Projection]:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1), keys and values expanded."""
    heads, query_dim = ranked(mixer.num_heads, tp), mixer.qk_nope_head_dim + mixer.qk_rope_head_dim
    if mixer.q_lora_rank:
        yield Projection("q_and_kv_down", "attention", hidden, mixer.q_lora_rank)
        yield Projection("q_up", "mla_up_projection", mixer.q_lora_rank, heads * query_dim)
    else:
        yield Projection("q_and_kv_down", "attention", hidden, heads * query_dim)
    yield Projection("q_and_kv_down", "attention", hidden, mixer.kv_lora_rank + mixer.qk_rope_head_dim)
    expanded = heads * (mixer.qk_nope_head_dim + mixer.v_head_dim)
    yield Projection("kv_up", "mla_up_projection", mixer.kv_lora_rank, expanded)
    outputs = heads * mixer.v_head_dim
    if mixer.output_gate:
        yield Projection("output_gate", "attention", hidden, outputs)
    yield Projection("attention_output", "attention", outputs, hidden, adapted=True)


def _linear(mixer: LinearAttention, hidden: int, tp: Size) -> Iterator[Projection]:
    keys, values, *_ = scan_widths(mixer, tp)
    more = _STEP_SIZES.get(mixer.kind, 2.0) * ranked(mixer.num_value_heads, tp)
    yield Projection("mixer_input", "attention", hidden, keys + 2.0 * values + more)
    yield Projection("mixer_output", "attention", values, hidden)


def rotated_values(mixer: GroupedQueryAttention | LatentAttention, tp: Size) -> Size:
    """Values a token that are rotated or copied to their place in front of the attention: of queries, keys and values.

    Of latent attention the queries, and what all heads share of the keys and values.
    """
    match mixer:
        case GroupedQueryAttention():
            products = mixer_products(mixer, 0, tp)
            return sum(product.columns for product in products[:-1]) - mixer.q_rank
        case LatentAttention():
            query_dim = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim
            return ranked(mixer.num_heads, tp) * query_dim + mixer.kv_lora_rank + mixer.qk_rope_head_dim


def dense_products(
    name: str, module: str, intermediate: int, gated: bool, hidden: int, tp: Size
) -> tuple[Projection, Projection]:
    """The first projections of a feed-forward part together, and the last one."""
    inner = intermediate / tp
    up = Projection(f"{name}_up", module, hidden, inner * (2.0 if gated else 1.0))
    return up, Projection(f"{name}_down", module, inner, hidden)


def sparse_products(ffn: MoeFfn, hidden: int) -> tuple[Projection, ...]:
    """What a layer of experts multiplies tokens with before and behind them, whole on every rank."""
    router = Projection("router", "moe", hidden, ffn.num_experts)
    if not ffn.latent_size:
        return (router,)
    down = Projection("latent_down", "moe", hidden, ffn.latent_size)
    return router, down, Projection("latent_up", "moe", ffn.latent_size, hidden)


class ScanWidths(NamedTuple):
    """What one rank's scan of linear attention takes in and does a token, and what it remembers of a sequence."""

    keys: Size  # values of queries and keys together
    values: Size
    flop_per_token: Size
    state_bytes: Size

    @property
    def moved_values(self) -> Size:
        """Values a token that the scan reads and writes; what it keeps of blocks stays near."""
        return self.keys + 2.0 * self.values


def scan_widths(mixer: LinearAttention, tp: Size) -> ScanWidths:
    """Of a chunked scan: about 2 (C + d_k) d_v + 2 C d_k multiply-adds a value head (GLA, section 4.2).

    The state of a head is an fp32 matrix of keys and values.
    """
    heads = ranked(mixer.num_value_heads, tp)
    per_head = 2.0 * mixer.value_head_dim * (SCAN_CHUNK_TOKENS + mixer.key_head_dim)
    flop = 2.0 * heads * (per_head + SCAN_CHUNK_TOKENS * mixer.key_head_dim)
    keys = 2.0 * ranked(mixer.num_key_heads, tp) * mixer.key_head_dim
    state_bytes = heads * mixer.key_head_dim * mixer.value_head_dim * 4.0
    return ScanWidths(keys, heads * mixer.value_head_dim, flop, state_bytes)
