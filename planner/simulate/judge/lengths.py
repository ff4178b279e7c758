"""How long streams must be, judged on pilot runs: long beside the time in which they forget, and beside their limits.

The requests in which a stream forgets (its integrated autocorrelation time) are what the variance of the means of its
batches makes of the variance of its values (Law, Simulation Modeling and Analysis, 5th ed., section 9.5.3). A pilot
that is not many times as long does not know them, and is repeated at twice its length (Sokal, "Monte Carlo methods in
statistical mechanics", 1997, section 3). Of a quantile it matters how often its tail is met anew: values beyond it come
together, in some tail / memory visits, and few of them tell neither how often they come nor how much that varies.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats
from planner.problem.statistics import quantile_of
from planner.simulate.judge.intervals import Estimate, fewest, odds_deviations

BATCHES = 4  # of a stream, whose means tell how long it remembers
KNOWN = 8.0  # times what a stream remembers: a pilot that knows it
LONG = 20.0  # times what a stream remembers: the length of one that counts
WARM = 3.0  # times what a stream remembers: cut at its beginning, at least
ODDS = 0.5  # half the interval of a quantile in log odds: beyond it a tail was met too rarely to know its spread
VISITS = 5.0  # times that all streams together forget the values beyond a quantile, at least
REACH = 5.0  # times the length of a pilot: it does not tell how long streams must be beyond
SAFETY = 1.3  # times the requests that a pilot asks for, whose intervals are noisy


@dataclass(frozen=True, slots=True)
class Length:
    """What the values of a limit in pilot runs ask of the streams that count, in judged requests of each."""

    remembered: float  # in which a stream forgets
    valid: float  # for an interval that can be trusted
    clear: float  # for one that is narrow beside the limit

    def known(self, judged: float) -> bool:
        """Whether a pilot of so many judged requests a stream is long enough to tell."""
        return judged >= KNOWN * self.remembered and REACH * judged >= self.valid


def length(streams: Sequence[Floats], name: str, estimate: Estimate, half: float) -> Length:
    """What a pilot asks for, where half of an interval is wanted to be `half`, in requests judged of a stream."""
    judged = sum(map(len, streams)) / len(streams)
    known = [values[~np.isnan(values)] for values in streams]
    if not any(map(len, known)):
        return Length(0.0, 0.0, 0.0)
    if min(map(len, known)) < BATCHES:
        return Length(math.inf, math.inf, math.inf)
    share = sum(map(len, known)) / len(known) / max(judged, 1.0)
    remembered = memory(known) / share
    least = fewest(name) / len(known) / share
    visited = SAFETY * VISITS * remembered / _beyond(name) / len(known)
    valid = max(LONG * remembered, visited, least, SAFETY * judged * (_odds(known, name, estimate) / ODDS) ** 2)
    now = 0.5 * (estimate.high - estimate.low)
    return Length(remembered, valid, SAFETY * judged * (now / half) ** 2 if half > 0.0 else valid)


def memory(streams: Sequence[Floats]) -> float:
    """Values of a stream in which it forgets: at least 1, that of independent ones."""
    pooled = np.concatenate(streams)
    variance = float(pooled.var())
    if variance <= 0.0:
        return 1.0
    means = [batch.mean() for values in streams for batch in np.array_split(values, BATCHES)]
    return max(len(pooled) / len(means) * float(np.var(means, ddof=1)) / variance, 1.0)


def tells(streams: Sequence[Floats], name: str) -> bool:
    """Whether streams that count met the values beyond a quantile often enough for an interval that holds it."""
    known = [values[~np.isnan(values)] for values in streams]
    if min(map(len, known), default=0) < BATCHES:
        return not any(map(len, known))
    return sum(map(len, known)) * _beyond(name) >= VISITS * memory(known)


def _beyond(name: str) -> float:
    """The share of values beyond a quantile, on its rarer side; all of a mean."""
    quantile = quantile_of(name)
    return 1.0 if quantile is None else min(quantile, 1.0 - quantile)


def _odds(streams: Sequence[Floats], name: str, estimate: Estimate) -> float:
    """Half the interval of a quantile in log odds, without the skewness of a few values; 0 of a mean."""
    quantile = quantile_of(name)
    if quantile is None or not len(streams) > 1:
        return 0.0
    return min(odds_deviations(streams, estimate.value, quantile, 1))
