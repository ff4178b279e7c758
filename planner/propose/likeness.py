"""Covariance of prediction errors among alternatives (a Gaussian process over load and layout).

Covariance of alternatives i and j whose loads are d_ij doublings apart and whose layouts (GPUs; tp, dp and ep of
decoding; colocated or disaggregated) are h_ij doublings apart, all added up:

    common^2 + smooth^2 exp(-d_ij^2 / (2 load_reach^2) - h_ij / layout_reach) + single^2 [i = j]

An error of a whole decision is common to all, one of a step time changes slowly with load and layout, and single ones
are those of a run. Some decisions are predicted far better than others: all deviations of one share a scale that is not
known, so that errors are a Student-t process of `freedom` degrees, and a run that is as predicted narrows what is
believed of all. Constants are of groups that no fit has seen: `benchmarks/own_runs.py ../shared/data/serving --fit`.
"""

import math
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats
from planner.costs.rates.spread import NORMAL_80

MIDDLE_80 = 0.9  # share below the upper end of the middle 80 %


@dataclass(frozen=True, slots=True)
class Likeness:
    """Deviations of the logarithm of measured over predicted time, and reaches in doublings."""

    common: float
    smooth: float
    single: float
    load_reach: float
    layout_reach: float
    freedom: float = math.inf
    held: float = 1.0  # width of 80 % intervals over that of the Student-t: with it they held 80 % after three runs

    def covariance(self, load_M: Floats, layout_MF: Floats) -> Floats:
        """Covariances of log errors [M, M]."""
        apart_MM = load_M[:, None] - load_M[None, :]
        layout_MM = np.abs(layout_MF[:, None, :] - layout_MF[None, :, :]).sum(axis=2)
        near_MM = np.exp(-(apart_MM**2) / (2.0 * self.load_reach**2) - layout_MM / self.layout_reach)
        covariance_MM: Floats = self.common**2 + self.smooth**2 * near_MM + self.single**2 * np.eye(len(load_M))
        return covariance_MM

    def deviations(self, freedom: float) -> float:
        """Either side of the middle 80 % of a belief of this many degrees of freedom."""
        from scipy.special import stdtrit

        return self.held * (NORMAL_80 if math.isinf(freedom) else float(stdtrit(freedom, MIDDLE_80)))


TPOT = Likeness(0.083, 0.123, 0.062, 2.89, 3.90, freedom=2.52, held=0.857)
TTFT = Likeness(0.280, 0.365, 0.256, 2.46, 5.58, freedom=2.22, held=0.829)
