"""What counts tell of rates: rates are draws of one unknown distribution, counts are Poisson (empirical Bayes).

Source  Robbins, "An empirical Bayes approach to statistics", 1956; the distribution of most likelihood over a grid
        (Kiefer and Wolfowitz 1956; Laird 1978) by expectation and maximisation.
A count of 1 says little of a rate where most rates are below 1, and a rate is not 0 because its count is.
C cell of equal counts and exposures, G grid.
"""

from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats

POINTS = 100  # of the grid, evenly in logarithms
ROUNDS = 1000
LEAST_COUNT = 0.02  # the least rate of the grid, as a count at the largest exposure


@dataclass(frozen=True, slots=True, eq=False)
class RateMixture:
    """Probabilities of the rates of a grid."""

    rate_G: Floats
    chance_G: Floats

    def expected(self, count: Floats, exposure: Floats) -> Floats:
        """The rate to expect where so many were counted at so much exposure. [C]"""
        weight_CG = _likelihood(count, exposure, self.rate_G) * self.chance_G
        return np.asarray(weight_CG @ self.rate_G / weight_CG.sum(axis=1))


def fit_mixture(count_C: Floats, exposure_C: Floats, times_C: Floats) -> RateMixture:
    """The mixture under which `times_C` cells of each count and exposure are most likely."""
    least = LEAST_COUNT / float(exposure_C.max())
    rate_G = np.geomspace(least, 2.0 * max(float((count_C / exposure_C).max()), 2.0 * least), POINTS)
    likely_CG = _likelihood(count_C, exposure_C, rate_G)
    chance_G = np.full(POINTS, 1.0 / POINTS)
    for _ in range(ROUNDS):
        posterior_CG = likely_CG * chance_G
        chance_G = times_C @ (posterior_CG / posterior_CG.sum(axis=1, keepdims=True)) / times_C.sum()
    return RateMixture(rate_G, chance_G)


def _likelihood(count_C: Floats, exposure_C: Floats, rate_G: Floats) -> Floats:
    """Of counts at the rates, relative to that of the likeliest rate. [C, G]"""
    mean_CG = np.outer(exposure_C, rate_G)
    logs = count_C[:, None] * np.log(mean_CG) - mean_CG
    return np.asarray(np.exp(logs - logs.max(axis=1, keepdims=True)))
