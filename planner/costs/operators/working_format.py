"""Rewrites operators for devices that compute in another format, such as fp32 on a CPU, or lack units for one."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

import numpy as np

from planner.arrays import Floats
from planner.costs.operators.kernels import (
    PROMPTS,
    AttentionBackward,
    BatchedGemm,
    Collective,
    DecodeAttention,
    Experts,
    Gemm,
    MemoryPass,
    Operator,
    PrefillAttention,
    activation_precision,
    bytes_per,
    quantises,
    stored_as,
    stored_format,
)
from planner.hardware.accelerator import Accelerator
from planner.models.architecture import Architecture, MoeFfn

Op = TypeVar("Op", bound=Operator)
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


def as_run_on(op: Op, gpu: Accelerator) -> Op:
    """The operator as a device runs it: where it has no units for the format of activations, weights alone keep it.

    Kernels then read the weights as stored and multiply in 16 bits (Marlin, arXiv:2408.11743). Products whose
    weights were derived while the model was loaded (absorbed projections) have theirs in 16 bits.
    """
    match op:
        case Gemm() if _lacks(gpu, activation_precision(op.precision)):
            return replace(op, precision=stored_as(op.precision))
        case BatchedGemm() if _lacks(gpu, activation_precision(op.precision)):
            return replace(op, precision=BF16)
        case Experts() if _lacks(gpu, op.activation):
            return replace(op, precision=stored_as(op.precision), activation=BF16)
        case DecodeAttention() if op.latent and op.sparse and gpu.vendor == "nvidia":
            return replace(op, heads=padded_heads(op.heads, wide=gpu.is_blackwell and op.sparse == PROMPTS))
        case _:
            return op


def padded_heads(heads: Floats, *, wide: bool) -> Floats:
    """Query heads that kernels of sparse latent attention compute: a multiple of 64, of 128 where `wide`.

    FlashMLA's take no others, 128 for prompts on Blackwell, so that engines pad what tensor parallelism leaves of them
    (SGLang's layers/attention/nsa_backend.py, `_forward_flashmla_sparse` and `_forward_flashmla_kv`; vLLM's
    v1/attention/backends/mla/flashmla_sparse.py, `_compute_fp8_decode_padded_heads`).
    """
    block = 128.0 if wide else 64.0
    return np.ceil(heads / block) * block


def as_launched(op: Op, gpu: Accelerator, *, whole_tiles: float, triton_experts: bool) -> Op:
    """The operator as a device runs it under an engine that has experts in whole tiles, or in Triton's kernels."""
    op = in_whole_tiles(as_run_on(op, gpu), whole_tiles)
    return in_triton(op, gpu) if triton_experts else op


def in_whole_tiles(op: Op, most_tp: float) -> Op:
    """The operator as an engine runs it whose kernels for experts in fp8 blocks compute whole tiles (`tiled_rows`).

    They do so where experts are split by at most `most_tp` and tokens did not come by all-to-all.
    """
    if most_tp <= 0.0 or not isinstance(op, Experts) or op.precision != "fp8_block":
        return op
    whole = op.moe_tp <= most_tp
    if op.exchanged is not None:
        whole &= op.exchanged <= 0
    return replace(op, whole_tiles=whole.astype(np.float64))


def in_triton(op: Op, gpu: Accelerator) -> Op:
    """The operator as an engine runs it whose kernels for experts are Triton's where tensor cores lack mxfp4."""
    if not isinstance(op, Experts) or not op.gated or not _dequantised(op.precision, gpu):
        return op
    return replace(op, triton=True)


def triton_layers(arch: Architecture, gpu: Accelerator) -> float:
    """Layers whose experts such an engine's kernels run."""
    if not _dequantised(arch.precisions.experts, gpu):
        return 0.0
    return float(sum(isinstance(layer.ffn, MoeFfn) and layer.ffn.gated for layer in arch.layers))


def _dequantised(precision: str, gpu: Accelerator) -> bool:
    """Whether Triton's kernels dequantise weights of this format: on Hopper (`can_implement` of `TritonFusedMoE`)."""
    return stored_format(precision) == "mxfp4" and gpu.is_hopper


def _lacks(gpu: Accelerator, activation: str) -> bool:
    return quantises(activation) and not gpu.supports(activation)
