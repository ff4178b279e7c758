"""KV-cache bytes of one sequence on one rank, with sparse-attention indexer keys and recurrent state.

All functions take scalars or arrays of context lengths and tensor-parallel sizes and broadcast them. Heads are divided
over the `tp` ranks; a rank always holds at least one KV head, and latent caches are resident whole on every rank.
"""

import numpy as np

from planner.arrays import Floats, Ints
from planner.errors import PlannerError
from planner.models.architecture import (
    BITS,
    Architecture,
    GroupedQueryAttention,
    LatentAttention,
    Layer,
    LinearAttention,
    UnsupportedMixer,
)

Sizes = float | Ints | Floats

INDEXER_KEY_BYTES_PER_DIM = 1 + 4 / 128
"""Sparse-attention keys are cached in fp8 with one fp32 scale per 128 values (DeepSeek-V3.2, arXiv:2512.02556)."""


def layer_kv_bytes_per_token(layer: Layer, arch: Architecture, tp: Sizes = 1) -> Floats:
    """Cache bytes that one token of context adds on one rank in `layer`, while any window is unfilled.

    Raises PlannerError for an attention without a known cache.
    """
    mixer, tp_array = layer.mixer, np.asarray(tp, dtype=np.float64)
    value_bytes = BITS[arch.precisions.kv_cache] / 8
    if isinstance(mixer, GroupedQueryAttention):
        if mixer.shares_kv:
            return np.zeros_like(tp_array)
        heads = np.maximum(1.0, np.ceil(mixer.num_kv_heads / tp_array))
        return heads * (mixer.head_dim + mixer.v_head_dim) * value_bytes
    if isinstance(mixer, LatentAttention):
        indexer_dims = mixer.indexer.head_dim if mixer.indexer is not None and not mixer.indexer.shared else 0
        latent = (mixer.kv_lora_rank + mixer.qk_rope_head_dim) * value_bytes
        return np.full_like(tp_array, latent + indexer_dims * INDEXER_KEY_BYTES_PER_DIM)
    if isinstance(mixer, UnsupportedMixer):
        raise PlannerError(
            f"the KV cache of {mixer.kind} is not known: {mixer.reason}",
            hint="choose a model whose layers all have costs; `planner models show` tells which do",
        )
    return np.zeros_like(tp_array)


def kv_bytes_per_token(arch: Architecture, tp: Sizes = 1) -> Floats:
    """Cache bytes that one token of context adds on one rank over all layers, while windows are unfilled."""
    total = np.zeros(np.shape(tp))
    for layer, times in arch.layer_groups():
        total = total + layer_kv_bytes_per_token(layer, arch, tp) * times
    return total


def kv_bytes(arch: Architecture, context_tokens: Sizes, tp: Sizes = 1) -> Floats:
    """Cache bytes of one sequence of `context_tokens` on one rank: window layers hold at most their window."""
    tokens = np.asarray(context_tokens, dtype=np.float64)
    total = np.zeros(np.broadcast_shapes(tokens.shape, np.shape(tp)))
    for layer, times in arch.layer_groups():
        window = layer.mixer.window_tokens if isinstance(layer.mixer, GroupedQueryAttention) else 0
        kept = np.minimum(tokens, window) if window else tokens
        total = total + kept * layer_kv_bytes_per_token(layer, arch, tp) * times
    return total


def state_bytes_per_sequence(arch: Architecture, tp: Sizes = 1) -> Floats:
    """Recurrent and convolution state of one sequence on one rank, whatever its length; 0 without linear layers."""
    tp_array = np.asarray(tp, dtype=np.float64)
    total = np.zeros_like(tp_array)
    for layer, times in arch.layer_groups():
        if isinstance(layer.mixer, LinearAttention):
            total = total + _state_bytes(layer.mixer, arch, tp_array) * times
    return total


def _state_bytes(mixer: LinearAttention, arch: Architecture, tp: Floats) -> Floats:
    """One key x value matrix per value head, and the last kernel-1 inputs of every convolution channel.

    The convolution runs over values and twice the keys (queries and keys; B and C in Mamba-2), in the unquantised
    format. Key heads, fewer than value heads, are resident, at least one a rank.
    """
    heads = np.ceil(mixer.num_value_heads / tp)
    key_heads = np.maximum(1.0, np.ceil(mixer.num_key_heads / tp))
    state: Floats = heads * mixer.key_head_dim * mixer.value_head_dim * BITS[mixer.state_precision] / 8
    channels: Floats = heads * mixer.value_head_dim + 2 * key_heads * mixer.key_head_dim
    return state + channels * max(mixer.conv_kernel - 1, 0) * BITS[arch.precisions.embedding] / 8
