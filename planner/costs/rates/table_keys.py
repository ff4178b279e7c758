"""Which rows of kernel tables an operator takes, by format and kind, and where it stands along the axes of a table."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from planner.arrays import Floats
from planner.costs.operators.kernels import PrefillAttention

DTYPES: dict[str, tuple[str, ...]] = {
    "fp32": ("float32",),
    "bf16": ("bfloat16",),
    "fp16": ("bfloat16", "float16"),
    "fp8": ("fp8", "fp8_block"),
    "fp8_block": ("fp8_block", "fp8"),
    "nvfp4": ("nvfp4",),
    "mxfp4": ("w4a8_mxfp4_mxfp8", "w4a16_mxfp4"),
    "int4": ("int4_wo",),
    "int8": ("int8", "int8_wo", "sq"),
}
"""Names of a format in kernel tables, the nearest first."""
PASS_OF = {
    "norm": "norm",
    "rotary_and_cache": "rotary",
    "ffn_activation": "activation",
    "shared_expert_activation": "activation",
    "embedding": "embedding",
    "sampling": "sampling",
    "cross_entropy": "cross_entropy",
    "kv_gather": "gather",
    "expert_permute": "gather",
    "expert_combine": "combine",
    "norm_input_gradient": "norm_backward",
    "rotary_and_cache_input_gradient": "rotary_backward",
    "ffn_activation_input_gradient": "activation_backward",
    "shared_expert_activation_input_gradient": "activation_backward",
    "cross_entropy_input_gradient": "cross_entropy_backward",
    "optimizer": "optimizer",
}
"""The kind of pass that was measured, by the name of an elementwise operator."""
MXFP4_WEIGHT_ONLY = ("w4a16_mxfp4", "w4a8_mxfp4_mxfp8")


def prefill_like(op: PrefillAttention) -> Callable[..., PrefillAttention]:
    """`op` at the sizes of a table's cells, which have no past."""

    def like(window: int, batch: Floats, length: Floats, heads: Floats, *rest: Floats) -> PrefillAttention:
        kv_heads = np.minimum(rest[0], heads) if rest else heads
        sizes = replace(op, sequences=batch, new_tokens=length, context=np.zeros_like(length), heads=heads)
        return replace(sizes, kv_heads=kv_heads, window=window)

    return like


def prefill_points(op: PrefillAttention) -> tuple[Floats, ...]:
    """Where a table holds `op`: a chunk with past takes the ratio of a prompt with as many pairs."""
    length = np.sqrt(op.new_tokens * (op.new_tokens + 2.0 * op.context))
    points = (op.sequences, length, op.heads)
    return points if op.latent else (*points, op.kv_heads)


def _kv(precision: str) -> str:
    return "fp8" if precision == "fp8" else "bfloat16"


def _attention_formats(kv_precision: str) -> Iterator[tuple[str, str]]:
    """Formats of cache and queries, own first; what runs in fp32 is like no table of another format."""
    if kv_precision == "fp32":
        yield "float32", "float32"
        return
    for kv in (_kv(kv_precision), "bfloat16", "fp8"):
        for dtype in ("bfloat16", "fp8"):
            yield kv, dtype


def latent_keys(kv_precision: str) -> Iterator[Mapping[str, str | int]]:
    """Rows of latent attention, in the order of `_attention_formats`."""
    for kv, dtype in _attention_formats(kv_precision):
        yield {"mla_dtype": dtype, "kv_cache_dtype": kv}


def attention_keys(head_dim: int, window: int, kv_precision: str) -> Iterator[Mapping[str, str | int]]:
    """Rows of attention with heads of one size and a window, in the order of `_attention_formats`."""
    for kv, dtype in _attention_formats(kv_precision):
        yield {"head_dim": head_dim, "window_size": window, "attn_dtype": dtype, "kv_cache_dtype": kv}
