"""Whole requests in steady state: how their time spreads with answers, and the share that keeps every limit at once.

The time of a request is L = T + (Y - 1) C: T its time to first token, Y the tokens of its answer, C its own time per
output token. T and Y are independent, and C is Gaussian about what answers as long take (`gap_averages`), so with y_k
the lengths of answers, w_k how often they come, and c_kq the nodes of weight v_q of a quadrature over C
    P(L <= x) = sum_kq w_k v_q P(T <= x - (y_k - 1) c_kq).
A request keeps its limits a on T, b on C and l on L with
    P(C <= b) sum_kq w_k v_q P(T <= min(a, l - (y_k - 1) c_kq)),
no more than the share that does: both are slow where many are there. Nothing is fitted. Stages on instances of their
own, each of which must keep limits whatever the other does, hold the first token to a quantile of T and the rest to the
same quantile of Y (of C where answers are equally long), and to means where those are above: for times skewed to the
right the sum of the two is no less than that quantile of L.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats
from planner.problem.lengths import LengthFacts, length_quantiles
from planner.problem.schema import Lengths
from planner.solvers.stochastic.gap_averages import Answers, GapAverages

HALVINGS = 60
NODES = 5  # of the Gaussian quadrature over the paces of answers that differ in length
EDGES = 1.0 - np.concatenate([np.linspace(1.0, 0.1, 37)[:-1], np.geomspace(0.1, 1e-4, 31), [0.0]])
"""Shares of answers between which one length stands for all: a fortieth each up to 90 %, finer above."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The time per output token of requests at points [N]: the least of some averages, each of the same answers."""

    averages: tuple[GapAverages, ...]
    answers: Answers

    def __len__(self) -> int:
        return len(self.averages[0].mean_s)

    def quantile_s(self, quantile: float) -> Floats:
        """What this share of requests does not exceed [N]."""
        least: Floats = np.minimum.reduce([each.quantile_s(quantile) for each in self.averages])
        return least

    def share_within(self, limit_s: Floats | float) -> Floats:
        """The share of requests [N] whose time per output token is no longer."""
        share: Floats = np.maximum.reduce([each.share_within(limit_s) for each in self.averages])
        return share

    def tpot_s(self, tokens: Floats, deviations: Floats) -> Floats:
        """Of answers of so many tokens [K], so many standard deviations above their mean [Q]: [N, K, Q]."""
        known = np.array(self.answers.tokens)
        place = np.interp(tokens, known, np.arange(len(known)))
        low = np.minimum(place.astype(np.intp), max(len(known) - 2, 0))
        high, part = np.minimum(low + 1, len(known) - 1), place - low
        times = []
        for each in self.averages:
            mean_s, deviation_s = (
                values[:, low] * (1.0 - part) + values[:, high] * part for values in (each.mean_s, each.deviation_s)
            )
            times.append(mean_s[:, :, None] + deviation_s[:, :, None] * deviations)
        least: Floats = np.maximum(np.minimum.reduce(times), 0.0)
        return least


@functools.cache
def _gaussian(several: bool) -> tuple[Floats, Floats]:
    """Standard deviations and weights that stand for a Gaussian, few where lengths of answers spread times anyway."""
    if several:
        nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
        return nodes, weights / weights.sum()
    from scipy.special import ndtri

    return ndtri((EDGES[1:] + EDGES[:-1]) / 2.0), np.diff(EDGES)


@dataclass(frozen=True, slots=True)
class Outputs:
    """Lengths of answers [K], ascending, and how often each comes."""

    tokens: tuple[float, ...]
    shares: tuple[float, ...]

    @classmethod
    def of(cls, lengths: Lengths, facts: LengthFacts, most: float) -> "Outputs":
        """Answers of a workload, none longer than `most`."""
        middles = (EDGES[1:] + EDGES[:-1]) / 2.0
        tokens = np.clip(length_quantiles(lengths, facts, middles), 1.0, most)
        values, places = np.unique(tokens, return_inverse=True)
        return cls(tuple(values.tolist()), tuple(np.bincount(places, np.diff(EDGES)).tolist()))

    @property
    def vary(self) -> bool:
        """Whether there is more than one length."""
        return len(self.tokens) > 1

    def quantile(self, share: float) -> float:
        """The length that this share of answers is no longer than."""
        place = int(np.searchsorted(np.cumsum(self.shares), share * (1.0 - 1e-12)))
        return self.tokens[min(place, len(self.tokens) - 1)]

    def share_within(self, first: Callable[[Floats], Floats], pace: Pace, limit_s: Floats | float) -> Floats:
        """The share of requests [N] that end within `limit_s`; `first` is that of first tokens within times [N, J]."""
        deviations, weights = _gaussian(self.vary)
        tokens = np.array(self.tokens)
        decoding_s = pace.tpot_s(tokens, deviations) * (tokens - 1.0)[:, None]
        left_s = np.broadcast_to(limit_s, len(pace))[:, None, None] - decoding_s
        each = np.outer(self.shares, weights).ravel()
        share: Floats = first(left_s.reshape(len(pace), len(each))) @ each
        return share

    def share_keeping(
        self, first: Callable[[Floats], Floats], pace: Pace, ttft_limit_s: float, latency_limit_s: Floats | float
    ) -> Floats:
        """The share of requests [N] whose first token and whose end are in time."""
        if not np.isfinite(latency_limit_s).all():
            return first(np.full((len(pace), 1), ttft_limit_s))[:, 0]
        return self.share_within(lambda left_s: first(np.minimum(left_s, ttft_limit_s)), pace, latency_limit_s)


def least_time_s(share_within: Callable[[float], float], quantile: float, likely_s: float) -> float:
    """The least time that this share of requests does not exceed, by bisection from `likely_s` up."""
    low, high = 0.0, max(likely_s, 1e-9)
    while share_within(high) < quantile:
        low, high = high, 2.0 * high
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if share_within(middle) >= quantile else (middle, high)
    return high
