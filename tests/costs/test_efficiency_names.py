"""Which parameters of a calibration the time of a kernel hangs on, told by changing one after another."""

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
import pytest

from planner.costs.operators.kernels import (
    AttentionBackward,
    BatchedGemm,
    Compute,
    DecodeAttention,
    Experts,
    Gemm,
    MemoryPass,
    PrefillAttention,
    Recurrence,
    Scores,
)
from planner.costs.rates.calibration import Efficiencies, is_share
from planner.costs.rates.roofline import Roofline
from planner.hardware.accelerator import Accelerator
from planner.hardware.topology import Topology

ONE = np.ones(1)


def gemm(precision: str) -> list[Compute]:
    """A product that is bound by operations, and one bound by bytes."""
    return [Gemm("g", 1.0, ONE * m, ONE * 8192, ONE * 8192, precision) for m in (65536, 1)]


def batched(precision: str) -> list[Compute]:
    return [BatchedGemm("b", 1.0, ONE * 8, ONE * m, ONE * 8192, ONE * 8192, precision) for m in (65536, 1)]


def prefill(*, latent: bool) -> PrefillAttention:
    return PrefillAttention("p", 1.0, ONE, ONE * 65536, ONE * 0, ONE * 8, ONE * 8, 128, 128, 0, "bf16", latent=latent)


def short(*, latent: bool) -> PrefillAttention:
    return PrefillAttention("p", 1.0, ONE * 64, ONE, ONE * 65536, ONE, ONE, 128, 128, 0, "bf16", latent=latent)


def decode(heads: float, *, latent: bool) -> DecodeAttention:
    return DecodeAttention("d", 1.0, ONE * 64, ONE * 65536, ONE * heads, ONE, 576, 512, 0, "bf16", latent=latent)


def experts(weights: str, activation: str) -> list[Compute]:
    return [
        Experts("e", 1.0, ONE * tokens, ONE, ONE, 4096, 2048, 8, 64, True, weights, activation) for tokens in (1e6, 8.0)
    ]


def moved(ops: Sequence[Compute], ideal: Roofline) -> set[str]:
    """The parameters that change the time of any of `ops`; experts' own laws of tiles and popularity aside."""
    names: set[str] = set()
    laws = ("experts_width", "experts_rows", "routing_concentration")
    for name in (field.name for field in fields(Efficiencies) if field.name not in laws):
        changed = replace(Efficiencies(), **{name: 0.5 if is_share(name) else 1e-3})
        slow = Roofline(ideal.accelerator, ideal.topology, changed)
        if any(slow.price(op).seconds[0] > ideal.price(op).seconds[0] for op in ops):
            names.add(name)
    return names


def test_whole_tiles_of_experts_compute_blocks_of_rows_for_each_at_the_rate_of_grouped_kernels(ideal: Roofline) -> None:
    """16 of 64 rows are tokens': 32 experts of the rank have 127 rows more each, three matrices of 4096 x 1024."""
    few = Experts("e", 1.0, ONE * 4, ONE * 2, ONE * 2, 4096, 2048, 8, 64, True, "fp8_block", "fp8_block")
    hopper = replace(ideal.accelerator, compute_capability="9.0", memory_bandwidth_bytes_per_s=1e15)
    known = replace(Efficiencies(), experts_flop_block=0.25, experts_flop_grouped=0.4)
    whole = Roofline(hopper, ideal.topology, known, whole_tiles=2.0)
    rows = 4 * 8 / 2 + 32 * 127
    flop_s = 2.0 * rows * 3 * 4096 * 1024 / (hopper.comparable_peak("fp8_block") * 0.4)
    assert whole.price(few).seconds[0] == pytest.approx(flop_s)
    assert whole.price(replace(few, tokens=ONE * 0)).seconds[0] == 0.0
    skips = Roofline(hopper, ideal.topology, known).price(few).seconds[0]
    for other in (
        replace(few, moe_tp=ONE * 4, ep=ONE),
        replace(few, exchanged=ONE),
        replace(few, precision="fp8", activation="fp8"),
    ):
        assert whole.price(other).seconds[0] == Roofline(hopper, ideal.topology, known).price(other).seconds[0]
    assert skips < whole.price(few).seconds[0]


@pytest.fixture(scope="module")
def ideal(topology: Topology) -> Roofline:
    """The data sheet's rates of a GPU with units for every format, no floor and no start."""
    rates = {"bf16": 1e15, "fp8": 2e15, "int8": 2e15, "nvfp4": 4e15}
    accelerator = Accelerator("test_gpu", "Test GPU", "test", 100e9, 1e12, rates, 0.0, 500.0, "10.0")
    return Roofline(accelerator, topology, Efficiencies())


@pytest.mark.parametrize(
    ("precision", "rates", "quantising"),
    [
        ("bf16", "gemm_flop gemm_bandwidth", ""),
        ("fp16", "gemm_flop gemm_bandwidth", ""),
        ("int4", "gemm_flop gemm_bandwidth", ""),
        ("mxfp4", "gemm_flop gemm_bandwidth_4bit", ""),
        ("nvfp4", "gemm_flop_4bit gemm_bandwidth_4bit", "quantise_4bit_s"),
        ("int8", "gemm_flop_quantised gemm_bandwidth", "quantise_fp8_s"),
        ("fp8", "gemm_flop_quantised gemm_bandwidth", "quantise_fp8_s"),
        ("fp8_block", "gemm_flop_quantised gemm_bandwidth", "quantise_block_s"),
    ],
)
def test_products_by_the_format_of_their_weights(precision: str, rates: str, quantising: str, ideal: Roofline) -> None:
    own = {*rates.split(), *quantising.split()}
    assert moved(gemm(precision), ideal) == own | {"gemm_start_s"}
    assert moved(batched(precision), ideal) == own | {"latent_start_s"}


@pytest.mark.parametrize(
    ("weights", "activation", "rate", "quantised"),
    [
        ("bf16", "bf16", "experts_flop", False),
        ("fp8", "fp8", "experts_flop", True),
        ("fp8_block", "fp8", "experts_flop_block_blackwell", True),
        ("int4", "bf16", "experts_flop_dequantised", False),
        ("mxfp4", "bf16", "experts_flop_dequantised", False),
        ("mxfp4", "fp8", "experts_flop", False),  # the kernel that gathers an expert's tokens quantises them
        ("nvfp4", "nvfp4", "experts_flop_4bit", True),
    ],
)
def test_experts_by_the_formats_of_weights_and_inputs(
    weights: str, activation: str, rate: str, quantised: bool, ideal: Roofline
) -> None:
    quantising = {"experts_quantise_s"} if quantised else set()
    assert moved(experts(weights, activation), ideal) == {rate, "experts_bandwidth", "experts_start_s"} | quantising


def test_experts_in_blocks_by_generation_and_by_how_their_tokens_came(ideal: Roofline) -> None:
    hopper = Roofline(replace(ideal.accelerator, compute_capability="9.0"), ideal.topology, Efficiencies())
    beside = {"experts_bandwidth", "experts_start_s", "experts_quantise_s"}
    gathered = experts("fp8_block", "fp8")
    exchanged: list[Compute] = [replace(op, exchanged=ONE) for op in gathered if isinstance(op, Experts)]
    assert moved(gathered, hopper) == {"experts_flop_block"} | beside
    assert moved(exchanged, hopper) == {"experts_flop_grouped"} | beside
    assert moved(exchanged, ideal) == {"experts_flop_block_blackwell"} | beside


def test_attention_by_what_it_reads(ideal: Roofline) -> None:
    moves = {"attention_bandwidth", "attention_start_s"}
    assert moved([prefill(latent=False), short(latent=False)], ideal) == {"attention_flop"} | moves
    assert moved([prefill(latent=True), short(latent=True)], ideal) == {"latent_flop"} | moves
    assert moved([decode(4096, latent=False), decode(1, latent=False)], ideal) == {"attention_flop"} | moves
    absorbed = [decode(4096, latent=True), decode(1, latent=True)]
    assert moved(absorbed, ideal) == {"attention_flop", "attention_bandwidth", "latent_start_s"}
    backward = [AttentionBackward("b", 1.0, once) for once in (prefill(latent=True), short(latent=True))]
    assert moved(backward, ideal) == {"attention_flop"} | moves
    scores = [Scores("s", 1.0, ONE * 1e9, ONE * keys, 64, 128) for keys in (1, 1e12)]
    assert moved(scores, ideal) == {"attention_flop"} | moves


def test_passes_and_scans(ideal: Roofline) -> None:
    passes = [MemoryPass("m", 1.0, ONE * 1e9, 2.0)]
    assert moved(passes, ideal) == {"elementwise_bandwidth", "elementwise_start_s"}
    scans = [Recurrence("r", 1.0, ONE * 1e6, ONE, ONE * 1e6, ONE * state) for state in (1, 1e12)]
    assert moved(scans, ideal) == {"gemm_flop", "elementwise_bandwidth", "gemm_start_s"}
