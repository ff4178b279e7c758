"""Estimates with 95 % intervals by replications: each independent stream gives one value, few streams some batches.

A stream alone is cut into long batches of neighbours, whose values stand for those of streams (Law, Simulation Modeling
and Analysis, 5th ed., sections 9.4 and 9.5). The interval of a mean is Student's of the means of streams. That of a
quantile x is Student's of the shares of each stream that lie at or below x, on the scale of their log odds, read back
as quantiles of all values (Heidelberger and Lewis, "Quantile estimation in dependent sequences", Operations Research
1984): its ends lie as far from x as the values there do. Few streams whose values are skewed miss on the side of the
long tail: there the interval is longer by Johnson's term ("Modified t tests and confidence intervals for asymmetrical
populations", JASA 1978, eq. 2.7 at the ends). V values of streams or batches.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats
from planner.problem.statistics import quantile_of
from planner.simulate.run.gaps import Gaps, pooled, quantiles_s
from planner.simulate.run.summary import statistic

VALUES = 10  # of streams, or of the batches of fewer of them
LEAST_EACH = 20  # values of a stream or batch
LEAST_BEYOND = 100  # values beyond the quantile
LEAST_OUTSIDE = 5  # values beyond an end of the interval of a quantile


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
    least = VALUES * LEAST_EACH
    return least if quantile is None else max(least, math.ceil(LEAST_BEYOND / min(quantile, 1.0 - quantile)))


def fewest_told(name: str) -> int:
    """Values of which a statistic can be told at all, with an interval or without."""
    quantile = quantile_of(name)
    if quantile is None:
        return LEAST_EACH
    return max(LEAST_EACH, math.ceil(LEAST_OUTSIDE / min(quantile, 1.0 - quantile)))


def estimate(streams: Sequence[Floats], name: str) -> Estimate:
    """A statistic of values in order of arrival, NaN of none left out, over all streams together."""
    known = [values[~np.isnan(values)] for values in streams]
    pooled_values = np.concatenate(known)
    count = len(pooled_values)
    value, each = statistic(pooled_values, name), max(VALUES // len(known), 1)
    if count < fewest(name) or min(map(len, known)) < each:
        return Estimate(value, None, count)
    batches = [batch for values in known for batch in np.array_split(values, each)]
    quantile = quantile_of(name)
    if quantile is None:
        down, up = deviations(np.array([batch.mean() for batch in batches]), each)
        return Estimate(value, (max(value - down, 0.0), value + up), count)
    down_up = odds_deviations(batches, value, quantile, each)
    return _between(value, count, quantile, down_up, lambda ends: np.quantile(pooled_values, ends))


def estimate_gaps(streams: Sequence[Gaps], name: str) -> Estimate:
    """The same of gaps between tokens, which streams have counted: quantiles are known as finely as they were."""
    counts_X, every = pooled(streams), max(VALUES // len(streams), 1)
    total, quantile = int(counts_X.sum()), quantile_of(name)
    if not total:
        return Estimate(math.nan, None, 0)
    value = sum(each.sum_s for each in streams) / total
    if quantile is not None:
        value = float(quantiles_s(counts_X, np.array([quantile]))[0])
    batches = [batch for each in streams for batch in each.batches(every)]
    if total < fewest(name) or not all(batch.count for batch in batches):
        return Estimate(value, None, total)
    if quantile is None:
        down, up = deviations(np.array([batch.sum_s / batch.count for batch in batches]), every)
        return Estimate(value, (max(value - down, 0.0), value + up), total)
    share_V = np.array([batch.share_within(value) for batch in batches])
    down_up = _of_shares(share_V, quantile, every)
    return _between(value, total, quantile, down_up, lambda ends: quantiles_s(counts_X, ends))


def _between(
    value: float, count: int, quantile: float, down_up: tuple[float, float], quantiles: Callable[[Floats], Floats]
) -> Estimate:
    """A quantile with its interval, from how far the log odds of its share reach down and up."""
    odds, (down, up) = math.log(quantile / (1.0 - quantile)), down_up
    ends = np.array([_share_of(odds - down), _share_of(odds + up)])
    if min(ends[0], 1.0 - ends[1]) * count < LEAST_OUTSIDE:
        return Estimate(value, None, count)
    low, high = quantiles(ends)
    return Estimate(value, (float(low), float(high)), count)


def odds_deviations(batches: Sequence[Floats], value: float, quantile: float, neighbours: int) -> tuple[float, float]:
    """How far the log odds of a share reach down and up from those of the quantile, by the shares of batches."""
    return _of_shares(np.array([np.mean(batch <= value) for batch in batches]), quantile, neighbours)


def _of_shares(share_V: Floats, quantile: float, neighbours: int) -> tuple[float, float]:
    """The same from the shares of batches."""
    down, up = deviations(share_V, neighbours)
    scale = quantile * (1.0 - quantile)
    # Where more lies at or below the value in most batches than in a few, the quantile may be larger than it looks.
    return up / scale, down / scale


def deviations(value_V: Floats, neighbours: int = 1) -> tuple[float, float]:
    """How far the 95 % interval of the mean reaches down and up from it; every so many values are of one stream."""
    from scipy.special import stdtrit

    count = len(value_V)
    error = float(value_V.std(ddof=1)) / math.sqrt(count) * _together(value_V, neighbours)
    if error <= 0.0:
        return 0.0, 0.0
    student = float(stdtrit(count - 1, 0.975))
    tail = skewness(value_V) * (1.0 + 2.0 * student * student) / (6.0 * math.sqrt(count))
    return error * (student + max(-tail, 0.0)), error * (student + max(tail, 0.0))


def skewness(value_V: Floats) -> float:
    """Of a sample of values that are not all equal, as Johnson's term takes it."""
    count, apart = len(value_V), value_V - value_V.mean()
    moment = float((apart**3).mean()) / math.pow(float((apart**2).mean()), 1.5)
    return moment * math.sqrt(count * (count - 1)) / (count - 2)


def _together(value_V: Floats, neighbours: int) -> float:
    """Factor of the error where batches of a stream are alike, by their first correlation.

    The sum of the first pair of a positive sequence: Geyer, "Practical Markov chain Monte Carlo", Statistical Science
    1992, section 3.3.
    """
    apart = value_V - value_V.mean()
    variance = float((apart * apart).mean())
    if neighbours < 2 or variance <= 0.0:
        return 1.0
    rows = apart.reshape(-1, neighbours)
    together = float((rows[:, 1:] * rows[:, :-1]).mean()) / variance
    return math.sqrt(1.0 + 2.0 * max(together, 0.0))


def _share_of(log_odds: float) -> float:
    return 1.0 / (1.0 + math.exp(-log_odds))
