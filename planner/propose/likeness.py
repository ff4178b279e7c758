"""Covariance of prediction errors among alternatives (a Gaussian process over load and layout).

Covariance of alternatives i and j whose loads are d_ij doublings apart and whose layouts (GPUs; tp, dp and ep of
decoding; colocated or disaggregated) are h_ij doublings apart, all added up:

    common^2 + smooth^2 exp(-d_ij^2 / (2 load_reach^2) - h_ij / layout_reach) + single^2 [i = j]

An error of a whole decision is common to all, one of a step time changes slowly with load and layout, and single ones
are those of a run: a Gaussian process over loads and layouts. Its constants are fitted by `benchmarks/likeness_fit.py`.
"""

from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats


@dataclass(frozen=True, slots=True)
class Likeness:
    """Deviations of the logarithm of measured over predicted time, and reaches in doublings."""

    common: float
    smooth: float
    single: float
    load_reach: float
    layout_reach: float

    def covariance(self, load_M: Floats, layout_MF: Floats) -> Floats:
        """Covariances of log errors [M, M]."""
        apart_MM = load_M[:, None] - load_M[None, :]
        layout_MM = np.abs(layout_MF[:, None, :] - layout_MF[None, :, :]).sum(axis=2)
        near_MM = np.exp(-(apart_MM**2) / (2.0 * self.load_reach**2) - layout_MM / self.layout_reach)
        covariance_MM: Floats = self.common**2 + self.smooth**2 * near_MM + self.single**2 * np.eye(len(load_M))
        return covariance_MM


TPOT = Likeness(common=0.03, smooth=0.17, single=0.026, load_reach=3.1, layout_reach=7.2)
TTFT = Likeness(common=0.66, smooth=0.56, single=0.12, load_reach=2.6, layout_reach=14.0)
