"""Simple rooflines of the measured kernels, to judge tables against: floating-point operations, bytes, data sheets.

A yardstick for the benchmarks alone; the planner's own roofline is in `planner.costs`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats
from planner.hardware.profiles.grid import Grid

Key = Mapping[str, str | int]


@dataclass(frozen=True, slots=True)
class DataSheet:
    """Dense peaks and memory bandwidth. Source: NVIDIA data sheets of A100, H100, H200, B200, GB200."""

    bandwidth_bytes_per_s: float
    bf16_flop_per_s: float
    fp8_flop_per_s: float
    fp4_flop_per_s: float
    link_bytes_per_s: float  # NVLink, one direction, all links of one GPU

    def peak(self, dtype: str) -> float:
        """FLOP/s of a kernel whose inputs are `dtype`; weight-only formats compute in bf16."""
        if dtype in ("nvfp4", "w4a4_mxfp4"):
            return self.fp4_flop_per_s
        return self.fp8_flop_per_s if dtype in ("fp8", "fp8_block", "sq", "w4a8_mxfp4_mxfp8") else self.bf16_flop_per_s


DATA_SHEETS = {
    "a100_sxm": DataSheet(2.039e12, 312e12, 624e12, 312e12, 300e9),
    "h100_sxm": DataSheet(3.35e12, 989e12, 1979e12, 989e12, 450e9),
    "h200_sxm": DataSheet(4.8e12, 989e12, 1979e12, 989e12, 450e9),
    "b200_sxm": DataSheet(8.0e12, 2250e12, 4500e12, 9000e12, 900e9),
    "gb200": DataSheet(8.0e12, 2500e12, 5000e12, 10000e12, 900e9),
}
WEIGHT_BYTES = {
    "bfloat16": 2.0,
    "fp8": 1.0,
    "fp8_block": 1.0,
    "sq": 1.0,
    "int8_wo": 1.0,
    "int4_wo": 0.5,
    "nvfp4": 0.5625,
}
WEIGHT_BYTES |= {"w4a16_mxfp4": 0.53125, "w4a8_mxfp4_mxfp8": 0.53125}
INPUT_BYTES = {"fp8": 1.0, "fp8_block": 1.0, "sq": 1.0, "nvfp4": 0.5625, "w4a8_mxfp4_mxfp8": 1.0}
FLOOR_S = 4e-6  # of any kernel; roughly what the smallest measured ones take


@dataclass(frozen=True, slots=True)
class Work:
    """What a kernel must do at each point: operations, bytes to and from memory, and the dtype it computes in."""

    flop: Floats
    size_bytes: Floats
    dtype: str

    def roofline_s(self, sheet: DataSheet) -> Floats:
        """The longer of computing and moving, plus a fixed floor."""
        compute_s = self.flop / sheet.peak(self.dtype)
        return np.maximum(compute_s, self.size_bytes / sheet.bandwidth_bytes_per_s) + FLOOR_S


def _gemm(grid: Grid, key: Key) -> Work:
    m, n, k = grid.points()
    dtype = str(key["gemm_dtype"])
    moved = WEIGHT_BYTES[dtype] * n * k + INPUT_BYTES.get(dtype, 2.0) * m * k + 2.0 * m * n
    return Work(2.0 * m * n * k, moved, dtype)


def _span(length: Floats, window: int) -> Floats:
    """Keys each query meets on average in a causal prompt of `length`, at most `window` (0 = no window)."""
    if window == 0:
        return length / 2
    ramp = np.minimum(length, window)
    return ramp - ramp * ramp / (2 * length)


def _cache_bytes(key: Key) -> float:
    return 1.0 if str(key["kv_cache_dtype"]).startswith("fp8") else 2.0


def _context_attention(grid: Grid, key: Key) -> Work:
    batch, isl, heads, kv_heads = grid.points()
    head_dim = float(key["head_dim"])
    flop = 4.0 * batch * isl * _span(isl, int(key["window_size"])) * heads * head_dim
    moved = batch * isl * head_dim * (4.0 * heads + 2.0 * kv_heads * _cache_bytes(key))
    return Work(flop, moved, str(key["attn_dtype"]))


def _generation_attention(grid: Grid, key: Key) -> Work:
    batch, step, heads, kv_heads = grid.points()
    head_dim, window = float(key["head_dim"]), int(key["window_size"])
    length = step + 1 if window == 0 else np.minimum(step + 1, window)
    moved = batch * head_dim * (2.0 * kv_heads * length * _cache_bytes(key) + 4.0 * heads)
    return Work(4.0 * batch * length * heads * head_dim, moved, "bfloat16")


def _context_mla(grid: Grid, key: Key) -> Work:
    batch, isl, heads = grid.points()
    flop = 2.0 * batch * isl * _span(isl, 0) * heads * (192 + 128)
    return Work(flop, 2.0 * batch * isl * heads * (192 + 192 + 128 + 128), "bfloat16")


def _generation_mla(grid: Grid, key: Key) -> Work:
    batch, step, heads = grid.points()
    moved = batch * ((step + 1) * 576 * _cache_bytes(key) + 2.0 * heads * (576 + 512))
    return Work(2.0 * batch * (step + 1) * heads * (576 + 512), moved, "bfloat16")


def _moe(grid: Grid, key: Key) -> Work:
    tokens, tp, ep = grid.points()
    dtype, experts, topk = str(key["moe_dtype"]), float(key["num_experts"]), float(key["topk"])
    expert_weights = 3.0 * float(key["hidden_size"]) * float(key["inter_size"]) / tp
    routed = tokens * topk / ep
    local = experts / ep
    touched = local * (1.0 - (1.0 - topk / experts) ** tokens)
    moved = touched * expert_weights * WEIGHT_BYTES[dtype] + 4.0 * routed * float(key["hidden_size"])
    return Work(2.0 * routed * expert_weights, moved, dtype)


WORK: dict[str, Callable[[Grid, Key], Work]] = {
    "gemm": _gemm,
    "context_attention": _context_attention,
    "generation_attention": _generation_attention,
    "context_mla": _context_mla,
    "generation_mla": _generation_mla,
    "moe": _moe,
}


def traffic_factor(operation: str, num_gpus: float) -> float:
    """Bytes each GPU sends per byte of the message: ring all-reduce twice (n-1)/n, the others once."""
    return (2.0 if operation == "all_reduce" else 1.0) * (num_gpus - 1) / num_gpus
