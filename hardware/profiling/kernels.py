"""Builds each profiled kernel in PyTorch: random inputs of a shape, and a function that runs it once.

Several sets of inputs can be prepared for one shape, so that a run does not find its inputs in the cache.
"""

from functools import partial
from typing import TYPE_CHECKING

from planner.hardware.profiling import attention_kernels as attention
from planner.hardware.profiling.attention_shapes import (
    DecodeAttentionShape,
    LatentDecodeShape,
    LatentPrefillShape,
    PrefillAttentionShape,
)
from planner.hardware.profiling.expert_kernels import experts
from planner.hardware.profiling.kernel import PreparedKernel, UnsupportedShapeError, random_values
from planner.hardware.profiling.kernel_shape import KernelShape
from planner.hardware.profiling.pass_kernels import memory_pass
from planner.hardware.profiling.shapes import (
    BatchedGemmShape,
    CopyShape,
    ExpertsShape,
    GemmShape,
    LaunchShape,
    MemoryPassShape,
)

if TYPE_CHECKING:
    import torch


def prepare(shape: KernelShape, device: "torch.device", *, fp8: bool, variant: str = "") -> PreparedKernel:
    """Random inputs of `shape` on `device`; raises UnsupportedShapeError for what cannot run there.

    Attention has several implementations on a GPU: without `variant` they are tried and the fastest is taken, as an
    engine's dispatch would.
    """
    match shape:
        case GemmShape():
            return _gemm(shape, device, fp8=fp8)
        case BatchedGemmShape():
            return _batched(shape, device)
        case PrefillAttentionShape():
            return attention.prefill(shape, device, variant)
        case DecodeAttentionShape():
            return attention.decode(shape, device, variant)
        case LatentPrefillShape():
            return attention.latent_prefill(shape, device, variant)
        case LatentDecodeShape():
            return attention.latent_decode(shape, device)
        case ExpertsShape():
            return experts(shape, device, fp8=fp8)
        case MemoryPassShape():
            return memory_pass(shape, device, fp8=fp8)
        case CopyShape():
            return _copy(shape, device)
        case LaunchShape():
            return _launch(shape, device)
        case _:
            raise UnsupportedShapeError("a collective needs several devices")


def _gemm(shape: GemmShape, device: "torch.device", *, fp8: bool) -> PreparedKernel:
    import torch

    if shape.precision == "fp8":
        return _fp8_gemm(shape, device, fp8=fp8)
    if shape.precision == "int4":
        return _int4_gemm(shape, device)
    dtype = torch.float32 if shape.precision == "fp32" else torch.bfloat16
    inputs, weights = (random_values(device, rows, shape.k, dtype=dtype) for rows in (shape.m, shape.n))
    return PreparedKernel(partial(torch.nn.functional.linear, inputs, weights), "torch linear")


def _fp8_gemm(shape: GemmShape, device: "torch.device", *, fp8: bool) -> PreparedKernel:
    """Activations are cast with one scale a tensor, as they arrive in bf16; sizes must be multiples of 16."""
    import torch

    if not fp8:
        raise UnsupportedShapeError("the device has no 8-bit floating-point tensor cores")
    if shape.n % 16 or shape.k % 16:
        raise UnsupportedShapeError("8-bit products need n and k that are multiples of 16")
    inputs = random_values(device, shape.m, shape.k)
    weights = random_values(device, shape.n, shape.k).to(torch.float8_e4m3fn).t()
    scale = torch.ones((), device=device)

    def run() -> object:
        quantised = inputs.to(torch.float8_e4m3fn)
        return torch._scaled_mm(quantised, weights, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)

    return PreparedKernel(run, "torch cast and scaled_mm")


_INT4_TILES = 8  # inner tiles of 16 columns that the packed weights of a GPU are laid out in


def _int4_gemm(shape: GemmShape, device: "torch.device") -> PreparedKernel:
    """Weights of 4 bits with a scale and a zero for each group of them, activations in bf16."""
    import torch

    on_cpu = device.type == "cpu"
    group = 32 if on_cpu else 16 * _INT4_TILES
    if shape.n % 16 or shape.k % group:
        raise UnsupportedShapeError(f"4-bit products need n in multiples of 16 and k in multiples of {group}")
    inputs = random_values(device, shape.m, shape.k)
    scales = random_values(device, shape.k // group, shape.n, 2)
    if on_cpu:
        codes = torch.randint(0, 16, (shape.n, shape.k), dtype=torch.int32)
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 2)
        multiply = torch.ops.aten._weight_int4pack_mm_for_cpu
    else:
        pairs = torch.randint(0, 256, (shape.n, shape.k // 2), dtype=torch.uint8, device=device)
        packed = torch.ops.aten._convert_weight_to_int4pack(pairs, _INT4_TILES)
        multiply = torch.ops.aten._weight_int4pack_mm
    return PreparedKernel(partial(multiply, inputs, packed, group, scales), "torch weight_int4pack_mm")


def _batched(shape: BatchedGemmShape, device: "torch.device") -> PreparedKernel:
    import torch

    inputs = random_values(device, shape.heads, shape.tokens, shape.k)
    weights = random_values(device, shape.heads, shape.k, shape.n)
    return PreparedKernel(partial(torch.bmm, inputs, weights), "torch bmm")


def _copy(shape: CopyShape, device: "torch.device") -> PreparedKernel:
    import torch

    if device.type == "cpu" and shape.direction != "device_to_device":
        raise UnsupportedShapeError("a processor has no copies between host and device")
    places = {"host": torch.device("cpu"), "device": device}
    origin, _, target = shape.direction.partition("_to_")
    pinned = device.type == "cuda"

    def buffer(place: str) -> "torch.Tensor":
        data = torch.randint(0, 256, (shape.moved_bytes,), dtype=torch.uint8, device=places[place])
        return data.pin_memory() if pinned and place == "host" else data

    source, destination = buffer(origin), buffer(target)
    return PreparedKernel(lambda: destination.copy_(source, non_blocking=True), "torch copy")


def _launch(shape: LaunchShape, device: "torch.device") -> PreparedKernel:
    import torch

    value = torch.zeros(1, device=device)

    def run() -> None:
        for _ in range(shape.num_kernels):
            value.add_(1.0)

    return PreparedKernel(run, f"torch add, {shape.mode}", capturable=shape.mode == "graph")
