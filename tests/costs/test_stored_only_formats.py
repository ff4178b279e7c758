"""Operators as a GPU runs them: weights in a format without units multiply in 16 bits, sparse heads fill blocks."""

from dataclasses import replace

import numpy as np
import pytest

from planner.costs.operators.kernels import (
    DECODING,
    PROMPTS,
    BatchedGemm,
    DecodeAttention,
    Experts,
    Gemm,
    demand,
)
from planner.costs.operators.working_format import as_run_on
from planner.costs.rates.calibration import Efficiencies
from planner.costs.rates.roofline import Roofline
from planner.hardware.accelerator import Accelerator
from planner.hardware.library import find_accelerator
from planner.hardware.topology import Topology

A100, H100 = find_accelerator("a100_sxm"), find_accelerator("h100_sxm")


def _size(value: float) -> np.ndarray:
    return np.array([value])


def _gemm(rows: float, precision: str) -> Gemm:
    return Gemm("ffn_up", 1.0, _size(rows), _size(4096.0), _size(8192.0), precision)


def _seconds(gpu: Accelerator, op: Gemm | Experts) -> float:
    return float(Roofline(gpu, Topology(()), Efficiencies()).price(op).seconds[0])


@pytest.mark.parametrize("precision", ["fp8", "fp8_block"])
def test_a_product_reads_8_bit_weights_and_16_bit_inputs(precision: str) -> None:
    asked = demand(as_run_on(_gemm(16.0, precision), A100))
    weights = 4096 * 8192 * (1.0 if precision == "fp8" else 1.0 + 4.0 / (128 * 128))
    assert asked.size_bytes[0] == pytest.approx(weights + 2.0 * 16 * (8192 + 4096))
    assert asked.precision == "bf16"


def test_a_gpu_with_units_runs_the_format_itself() -> None:
    op = _gemm(16.0, "fp8")
    assert as_run_on(op, H100) is op


def test_large_products_take_as_long_as_in_16_bits_and_small_ones_about_half() -> None:
    assert _seconds(A100, _gemm(8192.0, "fp8")) == pytest.approx(_seconds(A100, _gemm(8192.0, "bf16")))
    assert _seconds(A100, _gemm(1.0, "fp8")) < 0.75 * _seconds(A100, _gemm(1.0, "bf16"))
    assert _seconds(H100, _gemm(8192.0, "fp8")) < 0.75 * _seconds(H100, _gemm(8192.0, "bf16"))


def test_experts_read_8_bit_weights_and_16_bit_tokens() -> None:
    ones = _size(1.0)
    op = Experts("experts", 1.0, _size(4096.0), ones, ones, 2048, 768, 8, 128, True, "fp8", "fp8")
    run, plain = as_run_on(op, A100), replace(op, precision="bf16", activation="bf16")
    saved = demand(plain).size_bytes - demand(run).size_bytes
    assert saved[0] == pytest.approx(128 * 3 * 2048 * 768, rel=1e-6)
    assert demand(run).precision == "bf16"


def test_absorbed_projections_have_16_bit_weights() -> None:
    ones = _size(1.0)
    op = BatchedGemm("absorbed_query", 1.0, ones, ones, ones, ones, "fp8")
    assert as_run_on(op, A100).precision == "bf16"


@pytest.mark.parametrize(
    ("gpu", "sparse", "heads", "computed"),
    [
        ("h100_sxm", PROMPTS, 8.0, 64.0),
        ("b200_sxm", PROMPTS, 8.0, 128.0),
        ("b200_sxm", DECODING, 8.0, 64.0),
        ("b200_sxm", DECODING, 128.0, 128.0),
        ("b200_sxm", "", 8.0, 8.0),
        ("mi300x", PROMPTS, 8.0, 8.0),
    ],
)
def test_kernels_of_sparse_latent_attention_compute_whole_blocks_of_heads(
    gpu: str, sparse: str, heads: float, computed: float
) -> None:
    """FlashMLA's: multiples of 64 heads, of 128 for prompts on Blackwell."""
    sizes = _size(4.0), _size(2048.0), _size(heads), _size(1.0)
    op = DecodeAttention("attention", 1.0, *sizes, 576, 512, 0, "fp8", latent=True, sparse=sparse)
    assert demand(as_run_on(op, find_accelerator(gpu))).flop[0] == 2.0 * 4.0 * computed * 2048.0 * (576 + 512)
