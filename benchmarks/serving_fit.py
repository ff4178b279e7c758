"""A calibration of serving from all rows of tables of measured deployments, and its intervals.

Two steps from planner/calibrate/prior.yaml on: what all groups share, and where each lies
(planner/calibrate/shared.py); then what each engine adds before the first token (planner/calibrate/deployments.py), of
steps as much longer as their groups have them, on at most FEW rows of a group, drawn with a fixed seed, so that groups
weigh alike.

Intervals are fitted to the errors of groups that weigh the same. Each bound minimises its part of the mean relative
Winkler score at 80 %,
    sum_r w_r (high_r - low_r + 10 max(low_r - y_r, 0) + 10 max(y_r - high_r, 0)) / y_r,
and then both move away from the estimate by one factor, until they hold COVERED of the weight. Source of the score:
Gneiting and Raftery, "Strictly Proper Scoring Rules", JASA 102 (2007), section 6.2.
"""

from dataclasses import replace

import numpy as np

from planner.arrays import Bools, Floats, Indices
from planner.calibrate.deployments import MeasuredTimes, ServingParameters, fit_first_tokens, paced
from planner.calibrate.shared import SharedFit, fit_shared
from planner.calibrate.terms import DeploymentTerms
from planner.costs.rates.spread import ErrorSpread, features_of
from planner.estimate.closed_loop import MeanTimes
from planner.estimate.frame import idle_ttft_s

FEW = 12
LEVEL = 0.8
COVERED = 0.80
_PENALTY = 2.0 / (1.0 - LEVEL)
_RIDGE = 0.003  # on all coefficients but the constant
_FACTORS = np.arange(0.6, 3.0, 0.02)


def fit(
    terms: DeploymentTerms, measured: MeasuredTimes, start: ServingParameters, group: Indices, chosen: Bools
) -> SharedFit:
    """The parameters that the chosen rows [D] of groups [D] support."""
    shared = fit_shared(terms, measured, start, group, chosen)
    few = thinned(group, chosen & ~measured.queued)
    own = {number: np.exp(bias.mean) for number, bias in shared.groups.items()}
    longer = np.array([own.get(int(number), 1.0) for number in group])
    return replace(shared, parameters=fit_first_tokens(terms, measured, shared.parameters, few, longer))


def thinned(group: Indices, chosen: Bools) -> Bools:
    """At most FEW of the chosen rows [D] of each group [D]."""
    kept, random = np.zeros(len(group), dtype=np.bool_), np.random.default_rng(0)
    for number in np.unique(group):
        kept[random.permutation(np.flatnonzero(chosen & (group == number)))[:FEW]] = True
    return kept


def features(
    terms: DeploymentTerms, parameters: ServingParameters, predicted: MeanTimes, longer: Floats | None = None
) -> Floats:
    """[D, F] what the errors of these predictions go with, of steps as much longer [D]."""
    return features_of(predicted.ttft_s, idle_ttft_s(terms.frame, *paced(terms, parameters, longer=longer)))


def fit_spread(measured: Floats, predicted: Floats, features_NF: Floats, weight: Floats | None = None) -> ErrorSpread:
    """The spread of `measured` around `predicted`, rows [N] by their weight, which is the same where none is given."""
    share = np.ones(len(measured)) if weight is None else weight * len(measured) / weight.sum()
    low = _bound(measured, predicted, features_NF, share, -1.0)
    high = _bound(measured, predicted, features_NF, share, 1.0)
    for factor in _FACTORS:
        spread = ErrorSpread(tuple(low * factor), tuple(high * factor))
        if coverage(measured, *spread.bounds(predicted, features_NF), share) >= COVERED:
            break
    return ErrorSpread(tuple(float(v) for v in spread.low), tuple(float(v) for v in spread.high))


def fit_between(error: Floats, low: Floats, high: Floats, weight: Floats) -> tuple[float, float]:
    """What lies between groups, below and above: logarithms [N] of measured over predicted times of groups unseen.

    `low` and `high` are the logarithms of the bounds within groups, `weight` that of each row. Minimises the weighted
    interval score of the logarithms at 80 %.
    """
    from scipy.optimize import minimize

    def score(x: Floats) -> float:
        below, above = -np.hypot(low, x[0]), np.hypot(high, x[1])
        outside = np.maximum(below - error, 0.0) + np.maximum(error - above, 0.0)
        return float(np.sum(weight * (above - below + _PENALTY * outside)) / np.sum(weight))

    starts = ((0.2, 0.2), (0.05, 0.4), (0.4, 0.05))
    solved = min((minimize(score, start, method="Nelder-Mead") for start in starts), key=lambda each: float(each.fun))
    below, above = (float(v) for v in np.round(np.abs(solved.x), 3))
    return below, above


def coverage(measured: Floats, low: Floats, high: Floats, weight: Floats | float = 1.0) -> float:
    """Share of the rows between their bounds, by weights of mean 1."""
    return float(np.mean(weight * ((measured >= low) & (measured <= high))))


def winkler(measured: Floats, low: Floats, high: Floats) -> Floats:
    """Relative Winkler score of each row: width, and what lies outside, over what was measured."""
    outside = np.maximum(low - measured, 0.0) + np.maximum(measured - high, 0.0)
    return (high - low + _PENALTY * outside) / measured


def _bound(measured: Floats, predicted: Floats, features_NF: Floats, weight: Floats, side: float) -> Floats:
    from scipy.optimize import minimize

    def score(x: Floats) -> float:
        zero = tuple(np.zeros(len(x)))
        spread = ErrorSpread(tuple(x), zero) if side < 0 else ErrorSpread(zero, tuple(x))
        bound = spread.bounds(predicted, features_NF)[0 if side < 0 else 1]
        outside = np.maximum(side * (measured - bound), 0.0)
        return float(np.mean(weight * (side * bound + _PENALTY * outside) / measured) + _RIDGE * np.sum(x[1:] ** 2))

    start = np.zeros(features_NF.shape[1])
    start[0] = 0.3 * side
    solved = minimize(score, start, method="Nelder-Mead", options={"maxfev": 2000, "xatol": 1e-3, "fatol": 1e-6})
    return np.asarray(solved.x, dtype=np.float64)
