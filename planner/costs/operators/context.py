"""Context parallelism: what one rank attends with, and the keys and values that ranks exchange for it.

The tokens of a sequence are cut into 2 cp chunks, and a rank takes the one and the other that lie equally far from the
two ends, so that causal work is even (arXiv:2407.21783, section 3.3.2: keys and values are gathered, then each rank
attends with its own queries).
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from planner.arrays import Floats
from planner.costs.operators.attention_core import CORE, AttentionCore, attention_core
from planner.costs.operators.elementwise import ACTIVATION_BYTES
from planner.costs.operators.kernels import Collective, Operator
from planner.costs.operators.products import Size
from planner.costs.operators.work import Shards
from planner.models.architecture import Architecture, GroupedQueryAttention, LatentAttention, Mixer

GATHER = "context_all_gather"


def context_part(tokens: float, cp: int) -> tuple[float, float]:
    """New tokens of one of `cp` ranks that share a sequence of `tokens`, and those in front of them.

    The rank with the two chunks in the middle attends as a chunk behind them does, and no other has more to do: pairs
    of the others are as many, or fewer where a window cuts them off.
    """
    own = tokens / cp
    return own, (tokens - own) / 2.0


def head_part(core: AttentionCore, cp: int) -> AttentionCore:
    """What a rank attends with where whole sequences are there with a part of its heads (arXiv:2309.14509, section 3).

    A head of keys and values stays one.
    """
    return replace(core, heads=core.heads / cp, kv_heads=max(float(core.kv_heads) / cp, 1.0))


def kv_values(core: AttentionCore) -> Size:
    """Values a token of the keys and values of one rank."""
    return core.kv_heads * (core.head_dim + core.v_head_dim)


def query_values(core: AttentionCore) -> Size:
    """Values a token of the queries and outputs of one rank."""
    return core.heads * (core.head_dim + core.v_head_dim)


def context_gathers(
    arch: Architecture, shards: Shards, cp: int, tokens: float, *, trained: bool = False
) -> Iterator[Operator]:
    """The gathers of keys and values of `tokens` tokens, all sequences together, in every attention layer.

    Of latent attention what all heads share, before it is expanded: less than keys and values of the heads, and what a
    cache holds. Where it is `trained`, ranks expand their own tokens and exchange keys and values of the heads, as
    Megatron-LM's context parallelism does around its fused attention.
    """
    for layer, count in arch.layer_groups():
        runs, width, module = _gathered(layer.mixer, shards, trained=trained)
        if runs and cp > 1:
            size = tokens * width / runs * ACTIVATION_BYTES
            group = np.full(len(shards), float(cp))
            yield Collective(GATHER, count * runs, "all_gather", size, group, shards.tp, module=module)


def _gathered(mixer: Mixer | None, shards: Shards, *, trained: bool) -> tuple[float, Floats, str]:
    """Gathers a layer, values a token [N] of all, and what they are computed again with: latents with nothing."""
    match mixer:
        case LatentAttention() if not trained:
            return 1.0, np.full(len(shards), float(mixer.kv_lora_rank + mixer.qk_rope_head_dim)), ""
        case GroupedQueryAttention() | LatentAttention():
            return 2.0, np.asarray(kv_values(attention_core(mixer, shards.tp)), dtype=np.float64), CORE
        case _:
            return 0.0, np.zeros(len(shards)), ""
