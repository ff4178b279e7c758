"""Copies where a kernel cannot read its input in place: KV blocks gathered, and the rows of routed experts sorted."""

from collections.abc import Iterable, Iterator

import numpy as np

from planner.costs.operators.experts import routed_rows
from planner.costs.operators.kernels import Experts, MemoryPass, Operator
from planner.costs.operators.work import Shards
from planner.models.architecture import Architecture
from planner.models.kv import layer_kv_bytes_per_token

KV_GATHER = "kv_gather"
EXPERT_PERMUTE = "expert_permute"
_BYTES = 2.0  # of a value in bf16


def kv_gathers(arch: Architecture, shards: Shards, cached_tokens: float) -> Iterator[Operator]:
    """The copies of `cached_tokens` tokens, all sequences together, out of their blocks: read, and written in order."""
    for layer, count in arch.layer_groups():
        width = np.asarray(layer_kv_bytes_per_token(layer, arch, shards.tp), dtype=np.float64)
        if cached_tokens and width.any():
            yield MemoryPass(KV_GATHER, float(count), 2.0 * cached_tokens * width, 2.0)


def expert_permutes(operators: Iterable[Operator]) -> Iterator[Operator]:
    """Copies of the rows that go to experts [N], in front of the products and behind them, for each of `operators`.

    Gradients of weights use the rows that the forward pass has sorted.
    """
    for op in operators:
        if isinstance(op, Experts) and not op.name.endswith("_weight_gradient"):
            size_bytes = 2.0 * _BYTES * routed_rows(op.tokens, op.top_k, op.ep) * op.hidden
            name = EXPERT_PERMUTE + op.name.removeprefix("experts")
            yield MemoryPass(name, 2.0 * op.count, size_bytes, 2.0)
