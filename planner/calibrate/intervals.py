"""Intervals fitted to the errors of predictions by fits that had not seen the group they were of.

Each bound minimises its part of the mean relative Winkler score at 80 %,
    sum_r (high_r - low_r + 10 max(low_r - y_r, 0) + 10 max(y_r - high_r, 0)) / y_r,
and then both move away from the estimate by one factor, until they hold COVERED of the rows. Source of the score:
Gneiting and Raftery, "Strictly Proper Scoring Rules", JASA 102 (2007), section 6.2.
"""

import numpy as np

from planner.arrays import Floats
from planner.costs.rates.spread import ErrorSpread

LEVEL = 0.8
COVERED = 0.82  # of the rows fitted to: groups not seen are a little worse
_PENALTY = 2.0 / (1.0 - LEVEL)
_RIDGE = 0.003  # on all coefficients but the constant
_FACTORS = np.arange(0.6, 3.0, 0.02)


def fit_spread(measured: Floats, predicted: Floats, features_NF: Floats) -> ErrorSpread:
    """The spread of `measured` around `predicted`."""
    low = _bound(measured, predicted, features_NF, -1.0)
    high = _bound(measured, predicted, features_NF, 1.0)
    for factor in _FACTORS:
        spread = ErrorSpread(tuple(low * factor), tuple(high * factor))
        if coverage(measured, *spread.bounds(predicted, features_NF)) >= COVERED:
            break
    return ErrorSpread(tuple(float(v) for v in spread.low), tuple(float(v) for v in spread.high))


def coverage(measured: Floats, low: Floats, high: Floats) -> float:
    """Share of the rows between their bounds."""
    return float(np.mean((measured >= low) & (measured <= high)))


def winkler(measured: Floats, low: Floats, high: Floats) -> Floats:
    """Relative Winkler score of each row: width, and what lies outside, over what was measured."""
    outside = np.maximum(low - measured, 0.0) + np.maximum(measured - high, 0.0)
    return (high - low + _PENALTY * outside) / measured


def _bound(measured: Floats, predicted: Floats, features_NF: Floats, side: float) -> Floats:
    from scipy.optimize import minimize

    def score(x: Floats) -> float:
        zero = tuple(np.zeros(len(x)))
        spread = ErrorSpread(tuple(x), zero) if side < 0 else ErrorSpread(zero, tuple(x))
        bound = spread.bounds(predicted, features_NF)[0 if side < 0 else 1]
        outside = np.maximum(side * (measured - bound), 0.0)
        return float(np.mean((side * bound + _PENALTY * outside) / measured) + _RIDGE * np.sum(x[1:] ** 2))

    start = np.zeros(features_NF.shape[1])
    start[0] = 0.3 * side
    found = minimize(score, start, method="Nelder-Mead", options={"maxfev": 2000, "xatol": 1e-3, "fatol": 1e-6})
    return np.asarray(found.x, dtype=np.float64)
