"""The fit that the shipped calibration of serving is: all rows of a table of measured deployments, and intervals.

It goes on from the two fits of planner/calibrate/deployments.py, which are done twice over:
3. The shares of peak rates, on which long prompts hang and decoding hardly does, on both times; and 2. again.
4. With kernel tables, how far each kind of table counts against the fitted roofline.

Intervals are fitted to the errors of predictions by fits that had not seen the group they were of. Each bound minimises
its part of the mean relative Winkler score at 80 %,
    sum_r (high_r - low_r + 10 max(low_r - y_r, 0) + 10 max(y_r - high_r, 0)) / y_r,
and then both move away from the estimate by one factor, until they hold COVERED of the rows. Source of the score:
Gneiting and Raftery, "Strictly Proper Scoring Rules", JASA 102 (2007), section 6.2.
"""

from dataclasses import fields, replace

import numpy as np

from planner.arrays import Bools, Floats
from planner.calibrate.deployments import (
    NOISE,
    Fitted,
    MeasuredTimes,
    ServingParameters,
    engines_with_rows,
    fit_costs,
    fit_first_tokens,
    log_limits,
    log_of,
    paced,
    predict,
    prior_of,
    settled_tpot_s,
    soft_l1,
    with_logs,
)
from planner.calibrate.parameters import NAMES
from planner.calibrate.terms import DeploymentTerms
from planner.costs.rates.calibration import TableTrust
from planner.costs.rates.spread import ErrorSpread, features_of
from planner.estimate.closed_loop import MeanTimes
from planner.estimate.frame import idle_ttft_s

TTFT_NOISE = 0.5  # relative error of a time to first token that is taken as ordinary
ROUNDS = 2
MOST_RATE_STEPS = 8
COARSE_STEP = 0.03  # of finite differences of replayed benchmarks, whose steps are whole, in logarithms
LEVEL = 0.8
COVERED = 0.82  # of the rows fitted to: groups not seen are a little worse
_PENALTY = 2.0 / (1.0 - LEVEL)
_RIDGE = 0.003  # on all coefficients but the constant
_FACTORS = np.arange(0.6, 3.0, 0.02)


def fit(terms: DeploymentTerms, measured: MeasuredTimes, start: ServingParameters, chosen: Bools) -> Fitted:
    """The parameters that the chosen rows [D] support, by the first three fits."""
    ruled = engines_with_rows(terms, chosen)
    start = replace(start, engines={k: v for k, v in start.engines.items() if "<" not in k or k in ruled})
    parameters, errors = start, dict[str, float]()
    for _ in range(ROUNDS):
        costs, errors = fit_costs(terms, measured, start, parameters, chosen)
        parameters = fit_first_tokens(terms, measured, costs, chosen)
    parameters = fit_rates(terms, measured, parameters, chosen)
    return Fitted(fit_first_tokens(terms, measured, parameters, chosen), errors)


def fit_rates(
    terms: DeploymentTerms, measured: MeasuredTimes, start: ServingParameters, chosen: Bools
) -> ServingParameters:
    """The shares of peak rates, which decode hardly hangs on, from both times."""
    from scipy.optimize import least_squares

    names = [("", name) for name in NAMES if "_flop" in name or name in ("experts_width", "experts_rows")]
    expected = np.array([log_of(start, *name) for name in names])
    low, high = log_limits(names)
    prior = np.array([prior_of(name) for _, name in names])
    unqueued = chosen & ~measured.queued

    def residuals(x: Floats) -> Floats:
        predicted = predict(terms, with_logs(start, names, x))
        tpot, ttft = np.log(predicted.tpot_s / measured.tpot_s), np.log(predicted.ttft_s / measured.ttft_s)
        return np.concatenate(
            [soft_l1(tpot[chosen] / NOISE), soft_l1(ttft[unqueued] / TTFT_NOISE), (x - expected) / prior]
        )

    inside = np.clip(expected, low + 1e-6, high - 1e-6)
    step = np.full(len(names), COARSE_STEP)
    solved = least_squares(residuals, inside, bounds=(low, high), x_scale=0.2, max_nfev=MOST_RATE_STEPS, diff_step=step)
    return with_logs(start, names, solved.x)


def fit_trust(
    terms: DeploymentTerms, measured: MeasuredTimes, start: ServingParameters, chosen: Bools
) -> ServingParameters:
    """How far each kind of table counts against the roofline as fitted; the terms must hold tables."""
    from scipy.optimize import least_squares

    names = [field.name for field in fields(TableTrust)]
    wanted = np.log(measured.tpot_s[chosen])

    def trusted(x: Floats) -> ServingParameters:
        return replace(start, trust=TableTrust(**dict(zip(names, map(float, x), strict=True))))

    def residuals(x: Floats) -> Floats:
        tpot_s = settled_tpot_s(terms, trusted(x), tables=True)[chosen]
        return soft_l1((np.log(tpot_s) - wanted) / NOISE)

    solved = least_squares(
        residuals, np.full(len(names), 0.3), bounds=(0.01, 1.0), diff_step=np.full(len(names), 0.02), max_nfev=10
    )
    return trusted(solved.x)


def features(terms: DeploymentTerms, parameters: ServingParameters, predicted: MeanTimes) -> Floats:
    """[D, F] what the errors of these predictions go with."""
    return features_of(predicted.ttft_s, idle_ttft_s(terms.frame, *paced(terms, parameters)))


def fit_spread(measured: Floats, predicted: Floats, features_NF: Floats) -> ErrorSpread:
    """The spread of `measured` around `predicted`."""
    low = _bound(measured, predicted, features_NF, -1.0)
    high = _bound(measured, predicted, features_NF, 1.0)
    for factor in _FACTORS:
        spread = ErrorSpread(tuple(low * factor), tuple(high * factor))
        if coverage(measured, *spread.bounds(predicted, features_NF)) >= COVERED:
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
    solved = minimize(score, start, method="Nelder-Mead", options={"maxfev": 2000, "xatol": 1e-3, "fatol": 1e-6})
    return np.asarray(solved.x, dtype=np.float64)
