"""Experts in mxfp4 by OpenAI's Triton kernels, which engines run where tensor cores lack the format (Hopper).

Sources: python/triton_kernels/triton_kernels of github.com/triton-lang/triton, and TensorRT-LLM's
tensorrt_llm/_torch/modules/fused_moe/fused_moe_triton.py, which calls them. Sizes are arrays [N] over points of a step.
"""

import numpy as np

from planner.arrays import Floats

STEP = 128.0  # of the depth that a tile dequantises and multiplies at once, and columns of a tile
_ROWS = 16.0  # of the lowest tile
_LEAST_STEPS = 4.0  # that a multiprocessor takes of a tile
_DEPTH, _COLUMNS = 128.0, 256.0  # that weights are padded to multiples of


def launches(ep: Floats) -> Floats:
    """Kernels [N] of a layer beyond those of fused routing, of the products and of their sum.

    Two sort tokens by expert behind the choice, which fills its bit matrix and sums that; two pad the inputs, and the
    activation is part of the first product: three more. Where ranks share experts, three cut the choice down to those
    of a rank (`prune_routing_ep`).
    """
    return np.where(ep > 1, 6.0, 3.0)


def weight_values(hidden: float, inter: Floats) -> Floats:
    """Values [N] of an expert's three matrices as they are padded (`k_alignment`, `n_alignment`)."""
    up = _padded(hidden, _DEPTH) * _padded(2.0 * inter, _COLUMNS)
    return up + _padded(inter, _DEPTH) * _padded(hidden, _COLUMNS)


def serial_steps(rows: Floats, hidden: float, inter: Floats, multiprocessors: float) -> Floats:
    """Steps [N] that tiles of both products take one after the other, each dequantising STEP of their depth.

    What no number of multiprocessors shortens (Brent, JACM 21 (1974)), beside moving the weights of all tiles. Where
    tiles of all `rows` of experts are fewer than multiprocessors, several share the depth of one (`compute_split_k` of
    matmul_ogs_details/opt_flags_details/opt_flags_nvidia.py).
    """
    return _steps(rows, 2.0 * inter, hidden, multiprocessors) + _steps(rows, hidden, inter, multiprocessors)


def _steps(rows: Floats, columns: Floats | float, depth: Floats | float, multiprocessors: float) -> Floats:
    steps = np.maximum(depth / STEP, 1.0)
    tiles = np.maximum(rows / _ROWS, 1.0) * np.maximum(columns / STEP, 1.0)
    shared = np.clip(multiprocessors / tiles, 1.0, np.maximum(steps / _LEAST_STEPS, 1.0))
    return np.asarray(steps / shared * (rows > 0), dtype=np.float64)


def _padded(values: Floats | float, multiple: float) -> Floats:
    return np.asarray(np.ceil(values / multiple) * multiple, dtype=np.float64)
