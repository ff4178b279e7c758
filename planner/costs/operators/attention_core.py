"""The softmax attention of one rank: operations and bytes of its kernel, and of the kernels that give its gradients.

Sizes are arrays [N] over points of a serving step, or numbers of one training shard.
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from planner.arrays import Floats
from planner.costs.operators.products import Size, ranked
from planner.models.architecture import GroupedQueryAttention, LatentAttention

Sized = TypeVar("Sized", Floats, float)

CORE = "core_attention"
"""What recomputation knows it by."""
BACKWARD_BYTES = 2.0
"""Queries, keys, values and outputs read and their gradients moved once, of as many bytes each."""
BACKWARD_KERNELS = 2.0
"""One multiplies outputs by their gradients, one does all else (FlashAttention-2, arXiv:2307.08691, section 3.1.2)."""


@dataclass(frozen=True, slots=True)
class AttentionCore:
    """What queries of one rank attend with: heads, of which each rank has at least one, and their sizes."""

    heads: Size
    kv_heads: Size
    head_dim: int
    v_head_dim: int
    window: int = 0  # 0: all tokens in front
    chunked: bool = False  # the window is the aligned chunk that holds a token


def attention_core(mixer: GroupedQueryAttention | LatentAttention, tp: Size) -> AttentionCore:
    """The core of a mixer on one of `tp` ranks; that of latent attention with keys and values of all heads expanded."""
    heads = ranked(mixer.num_heads, tp)
    match mixer:
        case LatentAttention():
            return AttentionCore(heads, heads, mixer.qk_nope_head_dim + mixer.qk_rope_head_dim, mixer.v_head_dim)
        case GroupedQueryAttention():
            kv_heads = ranked(mixer.num_kv_heads, tp)
            return AttentionCore(heads, kv_heads, mixer.head_dim, mixer.v_head_dim, mixer.window_tokens, mixer.chunked)


def causal_pairs(new: Sized, context: Sized, window: float = 0.0) -> Sized:
    """Pairs of a new token and a token it attends to, itself included; each attends to the last `window` at most.

    sum over t = 1..new of min(context + t, window); window 0 stands for all.
    """
    growing = np.minimum(np.maximum(window - context, 0.0), new) if window else new  # whose window is not full yet
    pairs: Sized = growing * context + growing * (growing + 1.0) / 2.0 + (new - growing) * window
    return pairs


def chunk_pairs(new: Sized, context: Sized, chunk: float) -> Sized:
    """As `causal_pairs`, where a token attends to those of its own aligned chunk: sum of (position mod chunk) + 1."""

    def up_to(tokens: Sized) -> Sized:
        whole, rest = np.divmod(tokens, chunk)
        pairs: Sized = whole * chunk * (chunk + 1.0) / 2.0 + rest * (rest + 1.0) / 2.0
        return pairs

    return up_to(context + new) - up_to(context)


def attended(context: Floats, window: float, *, chunked: bool) -> Floats:
    """Cached tokens that a decoding token attends to: all, the last `window`, or the part of its chunk that is there.

    Sequences stand anywhere in their chunk once they are longer than one, so half of it on average.
    """
    if not window:
        return context
    return np.where(context < window, context, window / 2.0 if chunked else window)


def prompt_pairs(new: Sized, context: Sized, window: int, *, chunked: bool) -> Sized:
    """Pairs of `new` tokens of a sequence behind `context` others and the tokens that they attend to."""
    return chunk_pairs(new, context, window) if chunked else causal_pairs(new, context, window)


def keys_in_reach(new: Sized, context: Sized, window: int, *, chunked: bool) -> Sized:
    """Tokens whose keys and values `new` tokens of a sequence behind `context` others read, each once."""
    if not window:
        return new + context
    reached: Sized = new + (context % window if chunked else np.minimum(context, window))
    return reached


def core_flop(sequences: Sized, heads: Sized, pairs: Sized, head_dim: int, v_head_dim: int) -> Sized:
    """Scores of all pairs, and their sum over values."""
    return 2.0 * sequences * heads * pairs * (head_dim + v_head_dim)


def core_bytes(
    keys: Sized, kv_heads: Sized, queries: Sized, heads: Sized, width: int, kv_bytes: float, value_bytes: float = 2.0
) -> Sized:
    """Of one sequence: keys and values of the heads that have some, queries and outputs of all, each moved once.

    `width` are the values of a key with its value, and of a query with its output.
    """
    return keys * kv_heads * width * kv_bytes + value_bytes * queries * heads * width


def backward_products(head_dim: int, v_head_dim: int) -> float:
    """Operations of the gradients for one of the forward pass: five products for two, 2.5 for equal head sizes.

    Three are as deep as a key (the scores once more, the gradients of queries and keys), two as a value.
    """
    return (3.0 * head_dim + 2.0 * v_head_dim) / (head_dim + v_head_dim)
