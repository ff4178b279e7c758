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
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats
from planner.costs.rates.spread import MIDDLE_80, SeenRun

RERUN = 0.006  # log deviation of TPOT between reruns, whose median change is 0.4 %
UNPLACED = 3.1  # doublings of a load that is not known from that of a run: as two of a group that were measured
SAME = 1e-6  # doublings and tokens by which two places may differ and be one
LEAST_LEFT = RERUN**2  # variance of what is believed of a deployment that ran


@dataclass(frozen=True, slots=True)
class ErrorBelief:
    """What is believed of the logarithm of measured over predicted times [M]: Student-t of one freedom."""

    mean: Floats
    scale: Floats
    freedom: float

    @property
    def half(self) -> Floats:
        """Of the width of the middle 80 % [M]."""
        return self.above(MIDDLE_80)

    def above(self, share: float) -> Floats:
        """How far above the mean what this share lies below reaches [M]."""
        from scipy.special import ndtri, stdtrit

        deviations = ndtri(share) if math.isinf(self.freedom) else stdtrit(self.freedom, share)
        return np.asarray(float(deviations) * self.scale)


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
        shared_MM = self.shared(load_M, layout_MF, load_M, layout_MF)
        return np.asarray(shared_MM + self.single**2 * np.eye(len(load_M)))

    def shared(self, load_M: Floats, layout_MF: Floats, load_N: Floats, layout_NF: Floats) -> Floats:
        """Covariances [M, N] of what is common or changes slowly, of alternatives and others.

        A load that is not known (NaN) is a normal one about any other: the mean covariance.
        """
        apart_MN = load_M[:, None] - load_N[None, :]
        alike_MN = np.where(
            np.isnan(apart_MN),
            (1.0 + (UNPLACED / self.load_reach) ** 2) ** -0.5,
            np.exp(-(apart_MN**2) / (2.0 * self.load_reach**2)),
        )
        layout_MN = np.abs(layout_MF[:, None, :] - layout_NF[None, :, :]).sum(axis=2)
        near_MN = alike_MN * np.exp(-layout_MN / self.layout_reach)
        return np.asarray(self.common**2 + self.smooth**2 * near_MN)

    def told(self, runs: Sequence[SeenRun], load_M: Floats, layout_MF: Floats, lengths_ML: Floats) -> ErrorBelief:
        """What is believed of log errors [M] after these runs.

        Runs of one deployment and lengths count as one, at their mean; such a deployment shares what is single of it
        too. A Student-t process, conditioned: Shah, Wilson, Ghahramani, AISTATS 2014, lemma 3.
        """
        rows_RP = np.array([(run.load, *run.layout, *run.lengths) for run in runs])
        place_DP, place = np.unique(rows_RP, axis=0, return_inverse=True)
        error_D = np.bincount(place.ravel(), [run.error for run in runs]) / np.bincount(place.ravel())
        load_D, layout_DF = place_DP[:, 0], place_DP[:, 1 : 1 + layout_MF.shape[1]]
        seen_DD = self.covariance(load_D, layout_DF) + RERUN**2 * np.eye(len(error_D))
        place_MP = np.column_stack((load_M, layout_MF, lengths_ML))
        alike_MD = (np.abs(place_MP[:, None] - place_DP) <= SAME).all(axis=2)
        shared_MD = self.shared(load_M, layout_MF, load_D, layout_DF) + self.single**2 * alike_MD
        weights_MD = np.linalg.solve(seen_DD, shared_MD.T).T
        whole = self.common**2 + self.smooth**2 + self.single**2
        left_M = np.maximum(whole - np.sum(weights_MD * shared_MD, axis=1), LEAST_LEFT)
        freedom = self.freedom + len(error_D)
        if math.isfinite(self.freedom):
            square = float(error_D @ np.linalg.solve(seen_DD, error_D))
            left_M = left_M * (self.freedom + square) / freedom
        return self.belief(np.asarray(weights_MD @ error_D), left_M, freedom)

    def belief(self, mean: Floats, variance: Floats, freedom: float) -> ErrorBelief:
        """A belief of these squared scales, as wide as held."""
        return ErrorBelief(mean, self.held * np.sqrt(variance), freedom)


TPOT = Likeness(0.0559, 0.114, 0.0608, 2.80, 4.04, freedom=2.21, held=0.866)
TTFT = Likeness(0.226, 0.329, 0.244, 2.89, 7.41, freedom=2.2, held=0.791)
