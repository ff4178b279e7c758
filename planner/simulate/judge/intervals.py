"""Estimates with 95 % intervals by batch means, of one long stream or of several independent ones.

Each stream is cut into batches of neighbours, so long that their statistics are nearly independent (Law, Simulation
Modeling and Analysis, 5th ed., section 9.5.3; for quantiles Seila, "A batching approach to quantile estimation in
regenerative simulations", Management Science 1982): the spread of the statistics of batches stands for that of the
statistic of all.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats
from planner.problem.statistics import quantile_of
from planner.simulate.run.summary import BATCHES, STUDENT_95, statistic

FEWEST_BEYOND = 5  # values of a batch beyond the quantile, on average
FEWEST_EACH = 10  # values of a batch


@dataclass(frozen=True, slots=True)
class Estimate:
    """A statistic with its 95 % interval; None where there are too few values for one."""

    value: float
    interval: tuple[float, float] | None
    count: int  # values that it is of

    @property
    def low(self) -> float:
        """The lower end of the interval, or the value."""
        return self.value if self.interval is None else self.interval[0]

    @property
    def high(self) -> float:
        """The upper end of the interval, or the value."""
        return self.value if self.interval is None else self.interval[1]


def fewest(name: str) -> int:
    """Values that an interval of a statistic needs."""
    quantile = quantile_of(name)
    if quantile is None:
        return BATCHES * FEWEST_EACH
    return BATCHES * max(FEWEST_EACH, math.ceil(FEWEST_BEYOND / min(quantile, 1.0 - quantile)))


def estimate(streams: Sequence[Floats], name: str) -> Estimate:
    """A statistic of values in order of arrival, NaN of none left out, over all streams together."""
    known = [values[~np.isnan(values)] for values in streams]
    pooled = np.concatenate(known)
    value, each = statistic(pooled, name), max(BATCHES // len(known), 1)
    if len(pooled) < fewest(name) or min(map(len, known)) < each:
        return Estimate(value, None, len(pooled))
    batches_SB = np.array([[statistic(batch, name) for batch in np.array_split(values, each)] for values in known])
    half = STUDENT_95 * _deviation(batches_SB) / math.sqrt(batches_SB.size)
    return Estimate(value, (max(value - half, 0.0), value + half), len(pooled))


def _deviation(batches_SB: Floats) -> float:
    """Of the statistics of batches [stream, batch]; more where neighbours are alike, by their first correlation.

    The sum of the first pair of a positive sequence: Geyer, "Practical Markov chain Monte Carlo", Statistical Science
    1992, section 3.3.
    """
    apart = batches_SB - batches_SB.mean()
    variance = float((apart * apart).sum()) / (batches_SB.size - 1)
    if batches_SB.shape[1] < 2 or variance <= 0.0:
        return math.sqrt(variance)
    together = float((apart[:, 1:] * apart[:, :-1]).mean()) / variance
    return math.sqrt(variance * (1.0 + 2.0 * max(together, 0.0)))
