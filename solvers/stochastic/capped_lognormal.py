"""Lognormal variables of mean 1: quantiles, chances, and moments when they are cut at a cap, in closed form.

`cv2` is the squared coefficient of variation; with s^2 = ln(1 + cv2) the logarithm has mean -s^2 / 2 and deviation s.
"""

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from planner.arrays import Floats

LEAST_CV2 = 1e-9  # below it a variable is its mean


def unit_quantile(probability: float, cv2: float) -> float:
    """The quantile of a lognormal variable of mean 1 and squared coefficient of variation `cv2`; 0 at 0, inf at 1."""
    if not 0.0 < probability < 1.0:
        return 0.0 if probability <= 0.0 else math.inf
    deviation = math.sqrt(math.log1p(cv2))
    return math.exp(deviation * NormalDist().inv_cdf(probability) - deviation**2 / 2.0)


def unit_quantiles(probability: float, cv2: Floats) -> Floats:
    """`unit_quantile` of many variables [N]."""
    if not 0.0 < probability < 1.0:
        return np.full(len(cv2), unit_quantile(probability, 1.0))
    deviation = np.sqrt(np.log1p(cv2))
    return np.exp(deviation * NormalDist().inv_cdf(probability) - deviation**2 / 2.0)


def chance_above(level: ArrayLike, cv2: ArrayLike) -> Floats:
    """P(X > level), by broadcasting."""
    from scipy.special import ndtr

    level_, cv2_ = np.asarray(level, dtype=float), np.asarray(cv2, dtype=float)
    deviation = np.sqrt(np.log1p(np.maximum(cv2_, LEAST_CV2)))
    score = np.log(np.maximum(level_, 1e-300)) / deviation + deviation / 2.0
    return np.where(cv2_ < LEAST_CV2, level_ < 1.0 - LEAST_CV2, ndtr(-score))


def capped_means(cap: ArrayLike, cv2: ArrayLike) -> Floats:
    """E[min(X, cap)], by broadcasting.

    E[min(X, c)] = F(ln c / s - s / 2) + c (1 - F(ln c / s + s / 2)) with F the normal distribution: the limited
    expected value of Klugman, Panjer and Willmot, "Loss Models", appendix A.4.1.
    """
    return _capped_moments(cap, cv2, 1)


def capped_squares(cap: ArrayLike, cv2: ArrayLike) -> Floats:
    """E[min(X, cap)^2], by broadcasting; the second limited moment of the same source."""
    return _capped_moments(cap, cv2, 2)


def _capped_moments(cap: ArrayLike, cv2: ArrayLike, power: int) -> Floats:
    """E[X^k; X < c] + c^k P(X > c), with E[X^k; X < c] = exp((k^2 - k) s^2 / 2) F(ln c / s + s / 2 - k s)."""
    from scipy.special import ndtr

    cap_, cv2_ = np.asarray(cap, dtype=float), np.asarray(cv2, dtype=float)
    deviation = np.sqrt(np.log1p(np.maximum(cv2_, LEAST_CV2)))
    score = np.log(np.maximum(cap_, 1e-300)) / deviation + deviation / 2.0
    below = np.exp((power**2 - power) * deviation**2 / 2.0) * ndtr(score - power * deviation)
    spread = below + cap_**power * ndtr(-score)
    moments: Floats = np.where(cv2_ < LEAST_CV2, np.minimum(cap_, 1.0) ** power, spread)
    return moments


def compound_capped_means(number: Floats, cv2: float, cap: Floats) -> Floats:
    """E[min(X, cap)] [N] of the sum X of a Poisson number of variables, itself counted as lognormal where not 0."""
    number = np.maximum(number, 1e-9)
    some = -np.expm1(-number)
    mean, spread = number / some, np.maximum(some * (1.0 + cv2) / number + some - 1.0, 0.0)
    return some * mean * capped_means(np.maximum(cap, 1e-12) / mean, spread)
