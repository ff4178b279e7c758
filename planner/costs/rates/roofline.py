"""Roofline model: the larger of compute time and memory time at data-sheet rates, scaled by named efficiencies."""

from dataclasses import dataclass, replace

import numpy as np

from planner.arrays import Floats
from planner.costs.operators.balanced import fullest_rows
from planner.costs.operators.experts import routed_rows, tiled_rows
from planner.costs.operators.kernels import (
    AttentionBackward,
    BatchedGemm,
    Collective,
    Compute,
    DecodeAttention,
    Experts,
    Gemm,
    MemoryPass,
    Operator,
    PrefillAttention,
    Scores,
    demand,
    is_stored_only,
    quantises,
    stored_format,
)
from planner.costs.operators.triton import serial_steps
from planner.costs.operators.work import Shards
from planner.costs.operators.working_format import as_launched, triton_layers
from planner.costs.rates.calibration import Efficiencies
from planner.costs.rates.collectives import collective_s
from planner.costs.rates.evidence import KernelTime
from planner.costs.rates.near_runs import NearRuns
from planner.hardware.accelerator import Accelerator
from planner.hardware.topology import Topology
from planner.models.architecture import Architecture

FOUR_BIT = ("nvfp4", "mxfp4")


@dataclass(frozen=True, slots=True)
class Roofline:
    """Prices every operator analytically; the source of last resort, and the yardstick of measured tables."""

    accelerator: Accelerator
    topology: Topology
    efficiencies: Efficiencies
    slowdown: float = 1.0  # of whole steps (`Calibration.slowdown`)
    whole_tiles: float = 0.0  # the most tensor parallelism of experts that are computed in whole tiles
    triton_experts: bool = False  # Triton's kernels run experts in mxfp4 on Hopper
    near: NearRuns | None = None  # own runs that tell layouts of a search apart

    @property
    def name(self) -> str:
        return f"roofline of {self.accelerator.name}"

    @property
    def multiprocessors(self) -> int:
        """Of the accelerator; 0 where unknown."""
        return self.accelerator.num_multiprocessors

    def slowdown_of(self, shards: Shards) -> Floats | float:
        """Of whole steps of instances [N]."""
        return self.slowdown if self.near is None else self.slowdown * self.near.longer(shards)

    def of_role(self, function: str) -> "Roofline":
        """That of instances of a function."""
        return self if self.near is None else replace(self, near=self.near.of_role(function))

    def triton_layers(self, arch: Architecture) -> float:
        """Layers of a model whose experts Triton's kernels run."""
        return triton_layers(arch, self.accelerator) if self.triton_experts else 0.0

    def price(self, op: Operator) -> KernelTime:
        """Seconds of one run of `op` [N]; zero where it has nothing to do."""
        if isinstance(op, Collective):
            return KernelTime.analytical(collective_s(op, self.topology, self.efficiencies))
        return KernelTime.analytical(self.compute_s(op))

    def compute_s(self, op: Compute) -> Floats:
        """max(flop / rate, bytes / bandwidth), and a start for every launch."""
        op = as_launched(op, self.accelerator, whole_tiles=self.whole_tiles, triton_experts=self.triton_experts)
        known, blackwell = self.efficiencies, self.accelerator.is_blackwell
        names = efficiency_names(op, blackwell=blackwell)
        asked = demand(op, known.routing_concentration)
        rate = self.accelerator.comparable_peak(asked.precision) * getattr(known, names.flop)
        compute = asked.flop * slowdown(op, known, blackwell=blackwell) / rate
        move = asked.size_bytes / (self.accelerator.memory_bandwidth_bytes_per_s * getattr(known, names.bandwidth))
        start_s = sum(getattr(known, name) for name in names.starts)
        busy = asked.size_bytes + asked.flop > 0
        serial_s = known.dequantise_step_s * dequantised_steps(op, self.accelerator)
        return np.where(busy, np.maximum(compute, move) + start_s * asked.kernels + serial_s, 0.0)


def dequantised_steps(op: Compute, accelerator: Accelerator) -> Floats | float:
    """Steps of tiles that dequantise one after the other, whatever else is computed beside them."""
    if not (isinstance(op, Experts) and op.triton):
        return 0.0
    rows = op.tokens * op.top_k
    return serial_steps(rows, op.hidden, op.intermediate / op.moe_tp, accelerator.num_multiprocessors)


def slowdown(op: Compute, known: Efficiencies, *, blackwell: bool) -> Floats | float:
    """How much longer an operator computes than a large one of its kind.

    Ranks that share experts wait for the one with most rows. Narrow shards of experts, and few tokens an expert, leave
    tiles empty; tiles are no higher than the tokens need, so that at most half of their rows are. Tokens that came by
    all-to-all lie expert by expert, for which engines have kernels that gather nothing (DeepGEMM's grouped ones). These
    are what computes whole tiles too: full ones, whose columns hold a narrow shard's.
    """
    if not isinstance(op, Experts):
        return 1.0
    narrow = 1.0 + known.experts_width * op.moe_tp / op.intermediate
    rows = np.maximum(op.tokens * op.top_k / op.slots, 1.0)
    longer = narrow * (1.0 + np.minimum(known.experts_rows / rows, 1.0))
    before_blackwell = _experts_flop(op, blackwell=blackwell) == "experts_flop_block"
    grouped = known.experts_flop_block / known.experts_flop_grouped if before_blackwell else 1.0
    sparse = op.top_k < op.num_experts
    fullest = 1.0 if not sparse else fullest_rows(known.routing_concentration, op.num_experts, op.ep, op.redundant)
    longer = longer * fullest
    if op.whole_tiles is not None:
        routed, experts = routed_rows(op.tokens, op.top_k, op.ep), op.slots / op.ep
        tiles = tiled_rows(fullest * routed, experts) / tiled_rows(routed, experts)
        longer = np.where(op.whole_tiles > 0, grouped * tiles, longer)
    if op.exchanged is None:
        return longer
    return longer * np.where(op.exchanged > 0, grouped, 1.0)


@dataclass(frozen=True, slots=True)
class EfficiencyNames:
    """The efficiencies, by name, that an operator's time hangs on."""

    flop: str
    bandwidth: str
    starts: tuple[str, ...]  # of one launch, added up


def efficiency_names(op: Compute, *, blackwell: bool) -> EfficiencyNames:
    """The efficiencies of an operator's kernel, on Blackwell or what follows it, or before."""
    match op:
        case Gemm() | BatchedGemm():
            bandwidth = "gemm_bandwidth_4bit" if stored_format(op.precision) in FOUR_BIT else "gemm_bandwidth"
            start = "latent_start_s" if isinstance(op, BatchedGemm) else "gemm_start_s"
            return EfficiencyNames(_gemm_flop(op.precision), bandwidth, (start, *_quantising(op.precision)))
        case PrefillAttention() | DecodeAttention() | AttentionBackward() | Scores():
            flop = "latent_flop" if isinstance(op, PrefillAttention) and op.latent else "attention_flop"
            absorbed = isinstance(op, DecodeAttention) and op.latent
            start = "latent_start_s" if absorbed else "attention_start_s"
            return EfficiencyNames(flop, "attention_bandwidth", (start,))
        case Experts():
            gathered = op.precision == "mxfp4"  # the kernel that gathers an expert's tokens quantises them
            quantising = ("experts_quantise_s",) if quantises(op.activation) and not gathered else ()
            starts = ("experts_start_s", *quantising)
            return EfficiencyNames(_experts_flop(op, blackwell=blackwell), "experts_bandwidth", starts)
        case MemoryPass():
            return EfficiencyNames("gemm_flop", "elementwise_bandwidth", ("elementwise_start_s",))
        case _:
            return EfficiencyNames("gemm_flop", "elementwise_bandwidth", ("gemm_start_s",))


def _gemm_flop(precision: str) -> str:
    """The share for the format that the tensor cores see."""
    if not quantises(precision):
        return "gemm_flop"
    return "gemm_flop_4bit" if precision in FOUR_BIT else "gemm_flop_quantised"


def _experts_flop(op: Experts, *, blackwell: bool) -> str:
    if op.activation in FOUR_BIT:
        return "experts_flop_4bit"
    if is_stored_only(op.precision) or (op.precision in (*FOUR_BIT, "int4") and not quantises(op.activation)):
        return "experts_flop_dequantised"
    if op.precision != "fp8_block":
        return "experts_flop"
    return "experts_flop_block_blackwell" if blackwell else "experts_flop_block"


def _quantising(precision: str) -> tuple[str, ...]:
    """Quantising the inputs of one product before it runs."""
    if not quantises(precision):
        return ()
    if precision in FOUR_BIT:
        return ("quantise_4bit_s",)
    return ("quantise_block_s",) if precision == "fp8_block" else ("quantise_fp8_s",)
