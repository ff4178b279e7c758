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
from planner.costs.rates.spread import NORMAL_80, SeenRun

MIDDLE_80 = 0.9  # share below the upper end of the middle 80 %
RERUN = 0.006  # log deviation of TPOT between reruns, whose median change is 0.4 %
LEAST_LEFT = RERUN**2  # variance of what is believed of a deployment that ran


_Places = tuple[Floats, Floats, Floats]  # loads [M], layouts [M, F] and lengths [M, 2]


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
        """Covariances [M, N] of what is common or changes slowly, of alternatives and others."""
        apart_MN = load_M[:, None] - load_N[None, :]
        layout_MN = np.abs(layout_MF[:, None, :] - layout_NF[None, :, :]).sum(axis=2)
        near_MN = np.exp(-(apart_MN**2) / (2.0 * self.load_reach**2) - layout_MN / self.layout_reach)
        return np.asarray(self.common**2 + self.smooth**2 * near_MN)

    def told(
        self, runs: Sequence[SeenRun], load_M: Floats, layout_MF: Floats, lengths_ML: Floats
    ) -> tuple[Floats, Floats]:
        """Means [M] of log errors after these runs, and halves [M] of the width of their middle 80 %.

        A deployment that ran with these lengths shares what is single of a run too. A Student-t process, conditioned:
        Shah, Wilson, Ghahramani, AISTATS 2014, lemma 3.
        """
        load_R, error_R = (np.array([getattr(run, name) for run in runs]) for name in ("load", "error"))
        layout_RF, lengths_RL = (np.array([getattr(run, name) for run in runs]) for name in ("layout", "lengths"))
        places_R, places_M = (load_R, layout_RF, lengths_RL), (load_M, layout_MF, lengths_ML)
        seen_RR = self._of_runs(places_R, places_R) + RERUN**2 * np.eye(len(runs))
        shared_MR = self._of_runs(places_M, places_R)
        weights_MR = np.linalg.solve(seen_RR, shared_MR.T).T
        whole = self.common**2 + self.smooth**2 + self.single**2
        left_M = np.maximum(whole - np.sum(weights_MR * shared_MR, axis=1), LEAST_LEFT)
        freedom = self.freedom + len(runs)
        if math.isfinite(self.freedom):
            square = float(error_R @ np.linalg.solve(seen_RR, error_R))
            left_M = left_M * (self.freedom + square) / freedom
        return np.asarray(weights_MR @ error_R), np.asarray(self.deviations(freedom) * np.sqrt(left_M))

    def _of_runs(self, places: _Places, others: _Places) -> Floats:
        """Covariances [M, N] of deployments, which share all where they and their lengths are the same."""
        first_MP, second_NP = (np.column_stack(each) for each in (places, others))
        alike_MN = (first_MP[:, None] == second_NP[None]).all(axis=2)
        return np.asarray(self.shared(*places[:2], *others[:2]) + self.single**2 * alike_MN)

    def deviations(self, freedom: float) -> float:
        """Either side of the middle 80 % of a belief of this many degrees of freedom."""
        from scipy.special import stdtrit

        return self.held * (NORMAL_80 if math.isinf(freedom) else float(stdtrit(freedom, MIDDLE_80)))


TPOT = Likeness(0.083, 0.123, 0.062, 2.89, 3.90, freedom=2.52, held=0.857)
TTFT = Likeness(0.280, 0.365, 0.256, 2.46, 5.58, freedom=2.22, held=0.829)
