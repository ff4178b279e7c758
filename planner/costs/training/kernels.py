"""Kernels as rows of resource times, and their seconds under the calibrated rates of a machine.

A row holds what a kernel would take at the data sheet's rates, by resource; a rate is the share that is reached:

    seconds = exposed (max(flop_s / flop, move_s / move) + inside_s / link + outside_s / fabric + launches start)

Where kernel tables hold a product, it takes what was measured. Shapes: K kernels, R rates.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.arrays import Bools, Floats, Ints
from planner.costs.rates.evidence import Basis
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
    m: float = 0.0  # rows and columns of the output, and depth, of a product with one weight; 0 of all else
    n: float = 0.0
    k: float = 0.0
    captured: bool = False  # replayed with a CUDA graph, where hosts launch the rest one by one


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
    size_K3: Floats
    captured_K: Bools

    @classmethod
    def of(cls, kernels: Iterable[Kernel]) -> "KernelColumns":
        """The table of these kernels."""
        rows: Sequence[Kernel] = tuple(kernels)
        flop, move, inside, outside, launches = (
            np.array([row[index] for row in rows], dtype=np.float64) for index in range(3, 8)
        )
        part = np.array([row.part for row in rows], dtype=np.int64)
        size_K3 = np.array([row[8:11] for row in rows], dtype=np.float64).reshape(-1, 3)
        kinds, modules = tuple(row.kind for row in rows), tuple(row.module for row in rows)
        captured = np.array([row.captured for row in rows], dtype=np.bool_)
        return cls(kinds, part, modules, flop, move, inside, outside, launches, size_K3, captured)

    def measured(self, rates: Rates, generation: str) -> tuple[Floats, NDArray[np.uint8]]:
        """Seconds [K] of the device, products as kernel tables hold them, and the basis of each."""
        second_K = self.seconds(rates, generation)
        if rates.products is None:
            return second_K, np.full(len(second_K), Basis.ANALYTICAL, dtype=np.uint8)
        runs_K = np.maximum(self.launches_K, 1.0)
        each_K, basis_K = rates.products.seconds(self.kinds, self.size_K3, second_K / runs_K)
        return np.where(basis_K == Basis.ANALYTICAL, second_K, each_K * runs_K), basis_K

    def seconds(self, rates: Rates, generation: str) -> Floats:
        """Seconds [K] of the device at the calibrated rates."""
        rate_RK = rates.of(self.kinds, generation)
        compute = np.maximum(self.flop_K / rate_RK[0], self.move_K / rate_RK[1])
        moved = self.inside_K / rate_RK[2] + self.outside_K / rate_RK[3]
        return np.asarray(rate_RK[5] * (compute + moved + self.launches_K * rate_RK[4]))


def sums(index: Ints, values: Floats, size: int) -> Floats:
    """The sum of `values` [K] for every index below `size`."""
    return np.asarray(np.bincount(index, values, minlength=size), dtype=np.float64)
