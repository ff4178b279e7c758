"""Context parallelism: the all-gather of keys and values among its ranks, and the attention of one rank.

The tokens of a sequence are cut into 2 cp chunks, and a rank takes the one and the other that lie equally far from the
two ends, so that causal work is even (arXiv:2407.21783, section 3.3.2: keys and values are gathered, then each rank
attends with its own queries).
"""

from collections.abc import Iterator

import numpy as np

from planner.arrays import Floats
from planner.costs.operators.forward import ACTIVATION_BYTES
from planner.costs.operators.kernels import Collective, Operator
from planner.costs.operators.work import Shards
from planner.models.architecture import Architecture, GroupedQueryAttention, LatentAttention, Mixer

GATHER = "context_all_gather"


def context_gathers(arch: Architecture, shards: Shards, cp: int, tokens: float) -> Iterator[Operator]:
    """The gathers of keys and values of `tokens` tokens, all sequences together, in every attention layer."""
    for layer, count in arch.layer_groups():
        runs, width = _gathered_width(layer.mixer, shards)
        if runs and cp > 1:
            size = tokens * width / runs * ACTIVATION_BYTES
            group = np.full(len(shards), float(cp))
            yield Collective(GATHER, count * runs, "all_gather", size, group, shards.tp)


def _gathered_width(mixer: Mixer | None, shards: Shards) -> tuple[float, Floats]:
    """Gathers a layer, and values a token [N] of all of them."""
    match mixer:
        case GroupedQueryAttention():
            heads = np.maximum(mixer.num_kv_heads / shards.tp, 1.0)
            return 2.0, heads * (mixer.head_dim + mixer.v_head_dim)
        case LatentAttention():
            return 1.0, np.full(len(shards), float(mixer.kv_lora_rank + mixer.qk_rope_head_dim))
        case _:
            return 0.0, np.zeros(len(shards))
