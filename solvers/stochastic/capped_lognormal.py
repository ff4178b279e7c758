"""Quantiles of a lognormal variable, and its mean when it is cut at a cap, in closed form."""

import math
from statistics import NormalDist

import numpy as np

from planner.arrays import Floats


def unit_quantile(probability: float, cv2: float) -> float:
    """The quantile of a lognormal variable of mean 1 and squared coefficient of variation `cv2`; 0 at 0, inf at 1."""
    if not 0.0 < probability < 1.0:
        return 0.0 if probability <= 0.0 else math.inf
    deviation = math.sqrt(math.log1p(cv2))
    return math.exp(deviation * NormalDist().inv_cdf(probability) - deviation**2 / 2.0)


def capped_means(cap: Floats, cv2: float) -> Floats:
    """E[min(X, cap)] [N] of a lognormal X of mean 1 and squared coefficient of variation `cv2`.

    E[min(X, c)] = F(ln c / s - s / 2) + c (1 - F(ln c / s + s / 2)) with F the normal distribution and s^2 =
    ln(1 + cv2): the limited expected value of Klugman, Panjer and Willmot, "Loss Models", appendix A.4.1.
    """
    if cv2 <= 1e-12:
        return np.minimum(cap, 1.0)
    values, place = np.unique(cap, return_inverse=True)
    deviation = math.sqrt(math.log1p(cv2))
    return np.array([_capped_mean(value, deviation) for value in values.tolist()])[place]


def _capped_mean(cap: float, deviation: float) -> float:
    score = math.log(max(cap, 1e-300)) / deviation
    below, above = _normal(score - deviation / 2.0), _normal(-score - deviation / 2.0)
    return below + cap * above


def _normal(score: float) -> float:
    return 0.5 * math.erfc(-score / math.sqrt(2.0))
