"""The roofline: the larger of computing and moving time at the data sheet's rates, scaled by named efficiencies."""

from dataclasses import dataclass

import numpy as np

from planner.costs.collectives import collective_s
from planner.costs.evidence import Priced
from planner.costs.operators import (
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
    quantises,
)
from planner.costs.parameters import Efficiencies
from planner.costs.shapes import FloatArray
from planner.hardware.accelerator import Accelerator
from planner.hardware.topology import Topology


@dataclass(frozen=True, slots=True)
class Roofline:
    """Prices every operator analytically; the source of last resort, and the yardstick of measured tables."""

    accelerator: Accelerator
    topology: Topology
    efficiencies: Efficiencies

    @property
    def name(self) -> str:
        return f"roofline of {self.accelerator.name}"

    def price(self, op: Operator) -> Priced:
        """Seconds of one run of `op` [N]; zero where it has nothing to do."""
        if isinstance(op, Collective):
            return Priced.analytical(collective_s(op, self.topology, self.efficiencies))
        return Priced.analytical(self.compute_s(op))

    def compute_s(self, op: Compute) -> FloatArray:
        """max(flop / rate, bytes / bandwidth), at least one kernel floor per launch."""
        asked = demand(op)
        flop_efficiency, bandwidth_efficiency = _efficiency(op, self.efficiencies)
        compute = asked.flop / (self.accelerator.peak(asked.precision) * flop_efficiency)
        move = asked.size_bytes / (self.accelerator.memory_bandwidth_bytes_per_s * bandwidth_efficiency)
        floor = self.efficiencies.kernel_floor_s * asked.kernels
        return np.where(asked.size_bytes + asked.flop > 0, np.maximum(np.maximum(compute, move), floor), 0.0)


def _efficiency(op: Compute, known: Efficiencies) -> tuple[float, float]:
    match op:
        case Gemm() | BatchedGemm():
            return known.gemm_flop_quantised if quantises(op.precision) else known.gemm_flop, known.gemm_bandwidth
        case PrefillAttention() | DecodeAttention() | AttentionBackward() | Scores():
            return known.attention_flop, known.attention_bandwidth
        case Experts():
            return known.experts_flop, known.experts_bandwidth
        case MemoryPass():
            return 1.0, known.elementwise_bandwidth
        case _:
            return known.gemm_flop, known.elementwise_bandwidth
