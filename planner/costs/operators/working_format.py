"""Rewrites operators for devices that compute in another number format than bf16, such as fp32 on a CPU."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from planner.costs.operators.kernels import (
    AttentionBackward,
    BatchedGemm,
    Collective,
    DecodeAttention,
    Experts,
    Gemm,
    MemoryPass,
    Operator,
    PrefillAttention,
    bytes_per,
)

BF16 = "bf16"
_PLAIN = ("bf16", "fp16")
_FP32_ANYWAY = ("sampling", "cross_entropy", "router_top_k", "loss_all_reduce", "optimizer")
"""Passes and messages that are in fp32 whatever the layers work in."""


def in_working_format(operators: Iterable[Operator], working: str) -> Iterator[Operator]:
    """The operators with weights, activations and KV cache in `working` wherever they would be in bf16 or fp16."""
    for op in operators:
        yield op if working == BF16 else _converted(op, working)


def _converted(op: Operator, working: str) -> Operator:
    match op:
        case Gemm() | BatchedGemm() if op.precision in _PLAIN:
            return replace(op, precision=working)
        case Experts() if op.precision in _PLAIN:
            return replace(op, precision=working, activation=working)
        case PrefillAttention() | DecodeAttention() if op.kv_precision in _PLAIN:
            return replace(op, kv_precision=working)
        case AttentionBackward() if op.forward.kv_precision in _PLAIN:
            return replace(op, forward=replace(op.forward, kv_precision=working))
        case MemoryPass() | Collective() if not op.name.startswith(_FP32_ANYWAY):
            return replace(op, size_bytes=op.size_bytes * bytes_per(working) / bytes_per(BF16))
        case _:
            return op
