"""The basis of a kernel time: measured here, in an imported table, extrapolated at its edge, or by the roofline."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from planner.arrays import Bools, Floats

UNMEASURED = "no measurement near"  # how notes on what no run is like begin


class Basis(IntEnum):
    """From firmest to softest."""

    MEASURED = 0  # inside a table that we measured
    IMPORTED = 1  # inside a table measured by others
    HELD = 2  # outside such a table: its utilisation held at the edge
    ANALYTICAL = 3  # the roofline


@dataclass(frozen=True, slots=True)
class KernelTime:
    """Seconds [N] of one run of an operator, and the basis [N] of each."""

    seconds: Floats
    basis: NDArray[np.uint8]

    @classmethod
    def analytical(cls, seconds: Floats) -> "KernelTime":
        return cls(seconds, np.full(seconds.shape, Basis.ANALYTICAL, dtype=np.uint8))

    def where(self, chosen: Bools, other: "KernelTime") -> "KernelTime":
        """These times where `chosen` [N], those of `other` elsewhere."""
        basis = np.where(chosen, self.basis, other.basis).astype(np.uint8)
        return KernelTime(np.where(chosen, self.seconds, other.seconds), basis)
