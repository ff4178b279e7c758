"""One fit of serving costs to runs of many groups: what all of them share, and where each lies beside it.

Runs of a group (`planner.costs.rates.spread.group_of_runs`) err together: its models, its GPUs and the state of its
engine differ from what the costs know in ways that no column tells. So the logarithm of a measured time per output
token over that of the start is, of run r in group g,
    y_r = sum_p J_rp x_p + b_g + e_r,    x_p ~ N(0, prior_p^2),  b_g ~ N(0, between^2),  e_r ~ Student-t(NU, NOISE),
J the derivatives of the predicted logarithm by those of the parameters: shares, starts and host times, alike for all
engines. The mode is found by Gauss-Newton steps around weighted least squares (Student-t as weights: Lange, Little and
Taylor, JASA 84 (1989)); `between` by EM on the groups (empirical Bayes: Gelman et al., Bayesian Data Analysis, 5.4). A
group counts as MOST_ROWS runs at most. A group that no run was of lies at b = 0, wide as `between`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.arrays import Bools, Floats, Indices
from planner.calibrate.deployments import (
    MeasuredTimes,
    ServingParameters,
    log_limits,
    log_of,
    predict,
    prior_of,
    settled_tpot_s,
    with_logs,
)
from planner.calibrate.parameters import NAMES
from planner.calibrate.terms import DeploymentTerms
from planner.costs.rates.spread import GroupBias

MEASURED = (
    "dequantise_step_s",
    "experts_quantise_s",
    "quantise_4bit_s",
    "quantise_fp8_s",
    "routing_concentration",
)  # of the start: kernels were timed and loads recorded by themselves, and whole runs tell little more of them
HOST = ("step_s", "sequence_s", "prefill_s")  # of engines, moved together
NOISE = 0.10  # scale of what runs of a group differ by
NU = 3.0
STIFF = 0.5  # of the priors of a fit to one deployment: those of many must agree
EARLIER_PRIOR = 0.25  # of the multiple of starts on earlier GPUs
BETWEEN = 0.2  # where the deviation between groups begins
MOST_ROWS = 20.0  # that a group counts as
ROUNDS = 2
SWEEPS = 12
_STEP = 0.03  # of finite differences, in logarithms


@dataclass(frozen=True, slots=True)
class SharedFit:
    """Parameters that all groups share, where those [G] fitted to lie, and how sure both are."""

    parameters: ServingParameters
    groups: dict[int, GroupBias]
    between: float
    standard_errors: dict[str, float]


@dataclass(frozen=True, slots=True)
class _Mode:
    """The mode of the linear model, variances [P + G] beside it, and what lies between groups."""

    x: Floats
    b: Floats
    variance: Floats
    between: float


def fit_shared(
    terms: DeploymentTerms, measured: MeasuredTimes, start: ServingParameters, group: Indices, chosen: Bools
) -> SharedFit:
    """The fit to the chosen rows [D] of groups [D]; `start` is the middle of the prior."""
    free = [name for name in _names(start) if 0.0 < _value(start, name) < np.inf]
    prior = np.array([_prior_of(name) for _, name in free])
    low, high = log_limits(free)
    begin = np.array([np.log(_value(start, name)) for name in free])
    numbers, place = np.unique(group[chosen], return_inverse=True)
    weight = np.minimum(1.0, MOST_ROWS / np.bincount(place))[place]
    x = np.zeros(len(free))
    for _ in range(ROUNDS):
        now = _moved(start, free, x)
        settled = np.log(settled_tpot_s(terms, now))
        error = np.log(measured.tpot_s / predict(terms, now).tpot_s)[chosen]
        slopes = np.stack([(np.log(settled_tpot_s(terms, _moved(start, free, x + step))) - settled) for step in
                           _STEP * np.eye(len(free))], axis=1)[chosen] / _STEP  # fmt: skip
        mode = _mode(slopes, error + slopes @ x, prior, place, weight)
        x = np.clip(mode.x, low - begin, high - begin)
    deviation = np.sqrt(mode.variance)
    names = [".".join(filter(None, name)) for name in free]
    counts = np.bincount(place)
    return SharedFit(
        _moved(start, free, x),
        {
            int(number): GroupBias(float(mode.b[i]), float(deviation[len(free) + i]), int(counts[i]))
            for i, number in enumerate(numbers)
        },
        mode.between,
        dict(zip(names, map(float, deviation), strict=False)),
    )


def _mode(slopes: Floats, y: Floats, prior: Floats, place: Indices, counted: Floats) -> _Mode:
    """By weighted least squares, weights and what lies between groups in turn."""
    num, groups = len(prior), int(place.max()) + 1
    table = np.hstack([slopes, np.eye(groups)[place]])
    weight, between = counted.copy(), BETWEEN
    solution: Floats = np.zeros(num + groups)
    covariance: Floats = np.eye(num + groups)
    for _ in range(SWEEPS):
        precision = np.concatenate([prior**-2.0, np.full(groups, between**-2.0)])
        normal = (table * weight[:, None]).T @ table / NOISE**2 + np.diag(precision)
        covariance = np.asarray(np.linalg.inv(normal), dtype=np.float64)
        solution = covariance @ ((table * weight[:, None]).T @ y / NOISE**2)
        off = (y - table @ solution) / NOISE
        weight = counted * (NU + 1.0) / (NU + off**2)
        b = solution[num:]
        between = float(np.sqrt(np.mean(b**2 + np.diag(covariance)[num:])))
    return _Mode(solution[:num], solution[num:], np.diag(covariance), between)


def _names(start: ServingParameters) -> list[tuple[str, str]]:
    return [*(("", name) for name in NAMES if name not in MEASURED), *(("engines", name) for name in HOST)]


def _value(start: ServingParameters, name: tuple[str, str]) -> float:
    where, own = name
    return float(getattr(start.engine("default"), own) if where else getattr(start.efficiencies, own))


def _prior_of(name: str) -> float:
    return EARLIER_PRIOR if name == "earlier_starts" else STIFF * prior_of(name)


def _moved(start: ServingParameters, names: Sequence[tuple[str, str]], x: Floats) -> ServingParameters:
    """The start with every parameter longer by the exponential of `x`, host times of all engines alike."""
    shares = [(name, value) for name, value in zip(names, x, strict=True) if not name[0]]
    moved = with_logs(
        start, [name for name, _ in shares], np.array([log_of(start, *name) + value for name, value in shares])
    )
    scales = {name: float(np.exp(value)) for (where, name), value in zip(names, x, strict=True) if where}
    engines = {
        known: replace(own, **{name: getattr(own, name) * scale for name, scale in scales.items()})
        for known, own in start.engines.items()
    }
    return replace(moved, engines=engines)
