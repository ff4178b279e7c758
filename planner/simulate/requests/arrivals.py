"""Arrival times of open streams: renewal processes with a rate and a coefficient of variation (CV) of the gaps."""

import math

import numpy as np

from planner.arrays import Floats
from planner.errors import PlannerError, require_known
from planner.problem.schema import MOST_ARRIVAL_CV

PROCESSES = ("gamma", "poisson", "weibull")
BISECTIONS = 80


def arrivals(process: str, rate_per_s: float, count: int, *, cv: float = 1.0, seed: int = 0) -> Floats:
    """`count` arrival times [s] of a renewal process, the first after one gap; equal arguments give equal bytes.

    Gaps are exponential (poisson; `cv` is 1), gamma or Weibull with mean 1 / rate_per_s. Streams of one seed at
    different rates are the same draws scaled (common random numbers). Raises PlannerError for a rate or CV that
    cannot be.
    """
    require_known("process", process, PROCESSES)
    if not 0.0 < rate_per_s < math.inf:
        raise PlannerError(f"a rate must be above 0, found {rate_per_s:g}/s")
    if not 0.0 < cv <= MOST_ARRIVAL_CV:
        what = f"a CV of arrivals lies above 0 and is at most {MOST_ARRIVAL_CV:g}, found {cv:g}"
        raise PlannerError(what, hint="1 is Poisson")
    rng = np.random.default_rng(seed)
    if process == "weibull":
        shape = weibull_shape(cv)
        gaps = rng.weibull(shape, count) / math.gamma(1.0 + 1.0 / shape)
    elif process == "gamma":
        gaps = rng.gamma(1.0 / cv**2, cv**2, count)
    else:
        gaps = rng.exponential(1.0, count)
    return np.asarray(np.cumsum(gaps) / rate_per_s, dtype=np.float64)


def weibull_shape(cv: float) -> float:
    """The shape of a Weibull distribution with this CV, by bisection of G(1 + 2/k) / G(1 + 1/k)^2 = 1 + cv^2."""
    low, high = 0.1, 200.0
    for _ in range(BISECTIONS):
        middle = math.sqrt(low * high)
        log_ratio = math.lgamma(1.0 + 2.0 / middle) - 2.0 * math.lgamma(1.0 + 1.0 / middle)
        low, high = (middle, high) if log_ratio > math.log1p(cv**2) else (low, middle)
    return math.sqrt(low * high)
