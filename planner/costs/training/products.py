"""Products of training from kernel tables: measured seconds of the shapes that tables hold, beside a calibrated rate.

The tables are read as serving reads them (`planner.costs.rates.profiled`). Our own count in full; those of others by
the weight that the calibration gives them: kernels alone in a loop are faster than in a training step, and counted in
full make steps up to 14 % too fast (docs/training-accuracy.md). Shapes outside the tables, grouped and misaligned
products keep the rate. Shapes: K products, 3 rows and columns of the output and depth.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.arrays import Floats
from planner.costs.operators.kernels import Gemm
from planner.costs.rates.calibration import FULL_TRUST, Calibration
from planner.costs.rates.evidence import Basis
from planner.costs.rates.pricer import make_pricer
from planner.costs.rates.profiled import Profiled
from planner.hardware.cluster import Pool
from planner.hardware.profiles.store import ProfileStore
from planner.models.architecture import Architecture

MEASURED_FORMATS = ("bf16", "fp8", "fp8_block", "nvfp4")
_KIND = "gemm."


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredProducts:
    """The tables of one accelerator; hashes by identity."""

    pricer: Profiled
    imported_weight: float = 1.0  # of tables of others, in the logarithm of time

    @property
    def digests(self) -> tuple[str, ...]:
        """Of the tables used so far, as `sha256:...`."""
        return tuple(sorted(f"sha256:{name.removeprefix('sha256:')}" for name in self.pricer.digests))

    @property
    def notes(self) -> tuple[str, ...]:
        """Every compromise so far, in words."""
        return tuple(sorted(self.pricer.notes))

    def seconds(self, kinds: Sequence[str], size_K3: Floats, rated_K: Floats) -> tuple[Floats, NDArray[np.uint8]]:
        """Seconds of one run of each kernel [K] that takes `rated_K` at the calibrated rates, and what they rest on."""
        seconds_K, basis_K = rated_K.copy(), np.full(len(kinds), Basis.ANALYTICAL, dtype=np.uint8)
        for precision in MEASURED_FORMATS:
            here = np.array([kind == _KIND + precision for kind in kinds], dtype=np.bool_) & (size_K3[:, 0] > 0)
            if not here.any():
                continue
            m, n, k = size_K3[here].T
            time = self.pricer.price(Gemm("training", 1.0, m, n, k, precision))
            ours, others = time.basis == Basis.MEASURED, time.basis == Basis.IMPORTED
            weight = np.where(ours, 1.0, np.where(others, self.imported_weight, 0.0))
            seconds_K[here] = rated_K[here] ** (1.0 - weight) * time.seconds**weight
            basis_K[here] = np.where(ours | others, time.basis, Basis.ANALYTICAL)
        return seconds_K, basis_K


def measured_products(
    pool: Pool, arch: Architecture, calibration: Calibration, store: ProfileStore | None
) -> MeasuredProducts | None:
    """The tables that a store has of the pool's accelerator; None where it has none."""
    pricer = make_pricer(pool, arch, engine="training", version=None, calibration=calibration, store=store, bare=True)
    if not isinstance(pricer, Profiled):
        return None
    return MeasuredProducts(replace(pricer, trust=FULL_TRUST), calibration.tables.gemm)
