"""Extra cost of a paged KV cache where the attention kernel cannot read blocks in place: gathering them first."""

from collections.abc import Iterator

import numpy as np

from planner.costs.operators.kernels import MemoryPass, Operator
from planner.costs.operators.work import Shards
from planner.models.architecture import Architecture
from planner.models.kv import layer_kv_bytes_per_token

KV_GATHER = "kv_gather"


def kv_gathers(arch: Architecture, shards: Shards, cached_tokens: float) -> Iterator[Operator]:
    """The copies of `cached_tokens` tokens, all sequences together, out of their blocks: read, and written in order."""
    for layer, count in arch.layer_groups():
        width = np.asarray(layer_kv_bytes_per_token(layer, arch, shards.tp), dtype=np.float64)
        if cached_tokens and width.any():
            yield MemoryPass(KV_GATHER, float(count), 2.0 * cached_tokens * width, 2.0)
