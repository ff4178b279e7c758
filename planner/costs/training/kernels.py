"""Kernels as rows of resource times, and their seconds under the calibrated rates of a machine.

A row holds what a kernel would take at the data sheet's rates, by resource; a rate is the share that is reached:

    seconds = exposed (max(flop_s / flop, move_s / move) + inside_s / link + outside_s / fabric + launches start)

Shapes: K kernels, R rates.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from planner.arrays import Floats, Ints
from planner.costs.training.rates import Rates

FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT = 0, 1, 2
PASSES = 3


class Kernel(NamedTuple):
    """One kind of kernel of a pass; times are those at the data sheet's rates, of all its runs together."""

    kind: str  # which rates it goes by: "gemm.bf16", "attention", "elementwise", "tp", ...
    part: int  # FORWARD, BACKWARD_INPUT or BACKWARD_WEIGHT
    module: str  # what recomputation knows it by: "core_attention", "mlp", "moe", "layernorm", ...
    flop_s: float = 0.0
    move_s: float = 0.0
    inside_s: float = 0.0
    outside_s: float = 0.0
    launches: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class KernelColumns:
    """Kernels as columns [K]; `kinds` name the rates."""

    kinds: tuple[str, ...]
    part_K: Ints
    modules: tuple[str, ...]
    flop_K: Floats
    move_K: Floats
    inside_K: Floats
    outside_K: Floats
    launches_K: Floats

    @classmethod
    def of(cls, kernels: Iterable[Kernel]) -> "KernelColumns":
        """The table of these kernels."""
        rows: Sequence[Kernel] = tuple(kernels)
        columns = [np.array([row[index] for row in rows], dtype=np.float64) for index in range(3, 8)]
        part = np.array([row.part for row in rows], dtype=np.int64)
        return cls(tuple(row.kind for row in rows), part, tuple(row.module for row in rows), *columns)

    def seconds(self, rates: Rates, generation: str) -> Floats:
        """Seconds [K] of the device."""
        rate_RK = rates.of(self.kinds, generation)
        compute = np.maximum(self.flop_K / rate_RK[0], self.move_K / rate_RK[1])
        moved = self.inside_K / rate_RK[2] + self.outside_K / rate_RK[3]
        return np.asarray(rate_RK[5] * (compute + moved + self.launches_K * rate_RK[4]))


def sums(index: Ints, values: Floats, size: int) -> Floats:
    """The sum of `values` [K] for every index below `size`."""
    return np.asarray(np.bincount(index, values, minlength=size), dtype=np.float64)
