"""Whole requests in steady state: how their time spreads with answers, and the share that keeps every limit at once.

The time of a request is L = T + (Y - 1) c: T its time to first token, Y the tokens of its answer, c the mean time per
output token. T and Y are independent, so with y_k the lengths of answers and w_k how often they come
    P(L <= x) = sum_k w_k P(T <= x - (y_k - 1) c).
A request keeps its limits a on T, b on its own time per output token C and l on L with
    P(C <= b) sum_k w_k P(T <= min(a, l - (y_k - 1) c)),
C independent of both. Nothing is fitted. Stages on instances of their own, each of which must keep limits whatever the
other does, hold the first token to a quantile of T and the rest to the same quantile of Y, and to means where those are
above: for times skewed to the right the sum of the two is no less than that quantile of L.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats
from planner.problem.lengths import LengthFacts, length_quantiles
from planner.problem.schema import Lengths

HALVINGS = 60
EDGES = 1.0 - np.concatenate([np.linspace(1.0, 0.1, 37)[:-1], np.geomspace(0.1, 1e-4, 31), [0.0]])
"""Shares of answers between which one length stands for all: a fortieth each up to 90 %, finer above."""


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

    def share_within(self, first: Callable[[Floats], Floats], tpot_s: Floats, limit_s: Floats | float) -> Floats:
        """The share of requests [N] that end within `limit_s`; `first` is that of first tokens within times [N, K]."""
        left_s = np.broadcast_to(limit_s, tpot_s.shape)[:, None] - tpot_s[:, None] * (np.array(self.tokens) - 1.0)
        share: Floats = first(left_s) @ np.array(self.shares)
        return share

    def share_keeping(
        self, first: Callable[[Floats], Floats], tpot_s: Floats, ttft_limit_s: float, latency_limit_s: Floats | float
    ) -> Floats:
        """The share of requests [N] whose first token and whose end are in time."""
        if not np.isfinite(latency_limit_s).all():
            return first(np.full((len(tpot_s), 1), ttft_limit_s))[:, 0]
        return self.share_within(lambda left_s: first(np.minimum(left_s, ttft_limit_s)), tpot_s, latency_limit_s)


def least_time_s(share_within: Callable[[float], float], quantile: float, likely_s: float) -> float:
    """The least time that this share of requests does not exceed, by bisection from `likely_s` up."""
    low, high = 0.0, max(likely_s, 1e-9)
    while share_within(high) < quantile:
        low, high = high, 2.0 * high
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if share_within(middle) >= quantile else (middle, high)
    return high
