"""Gaps between the tokens of requests (ITL) as a run counted them: by workload, by part of the run, in narrow bins.

N bins that have gaps of a part, Q quantiles.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Bools, Floats, Ints
from planner.simulate.loop import fields as f

_EDGES = np.ldexp(
    1.0 + (np.arange(f.GAP_BINS) % f.FINEST) / f.FINEST, f.LEAST_EXPONENT - 1 + np.arange(f.GAP_BINS) // f.FINEST
)
_WIDTHS = np.append(np.diff(_EDGES), _EDGES[-1] / f.FINEST)


@dataclass(frozen=True, slots=True, eq=False)
class Gaps:
    """Counted gaps, each known to .4 % from 2**-14 s to 2**9 s, and their sum, which is exact.

    Parts of a run have equal numbers of requests that were completed in them.
    """

    workload_N: Ints
    part_N: Ints
    bin_N: Ints
    count_N: Ints
    seconds_WG: Floats  # [W, G] sum, by workload and part

    @classmethod
    def of_counts(cls, counts: Ints, seconds: Floats) -> "Gaps":
        """Of the counts [W, G, X] and sums [W, G] of a run."""
        workload, part, place = np.nonzero(counts)
        return cls(workload, part, place, counts[workload, part, place], seconds)

    def of_workload(self, number: int) -> "Gaps":
        """Those of one workload."""
        others = np.arange(len(self.seconds_WG)) != number
        return self._kept(self.workload_N == number, np.where(others[:, None], 0.0, self.seconds_WG))

    def within(self, begin: float, end: float) -> "Gaps":
        """Those of the parts that lie within these shares of a run, one at least."""
        first = min(int(np.ceil(begin * f.GAP_PARTS)), f.GAP_PARTS - 1)
        return self._of_parts(first, max(int(end * f.GAP_PARTS), first + 1))

    def batches(self, count: int) -> "list[Gaps]":
        """The same in so many runs of neighbouring parts, of those between the first and the last that has gaps."""
        if not len(self.part_N):
            return [self] * count
        ends = np.linspace(self.part_N.min(), self.part_N.max() + 1, count + 1).round().astype(int).tolist()
        return [self._of_parts(first, last) for first, last in itertools.pairwise(ends)]

    def _of_parts(self, first: int, last: int) -> "Gaps":
        parts = np.arange(self.seconds_WG.shape[1])
        outside = (parts < first) | (parts >= last)
        return self._kept((self.part_N >= first) & (self.part_N < last), np.where(outside, 0.0, self.seconds_WG))

    def _kept(self, kept: Bools, seconds_WG: Floats) -> "Gaps":
        return Gaps(self.workload_N[kept], self.part_N[kept], self.bin_N[kept], self.count_N[kept], seconds_WG)

    @property
    def by_part(self) -> Ints:
        """How many each part of the run has [G]."""
        counts = np.zeros(f.GAP_PARTS, dtype=np.int64)
        np.add.at(counts, self.part_N, self.count_N)
        return counts

    @property
    def count(self) -> int:
        return int(self.count_N.sum())

    @property
    def sum_s(self) -> float:
        return float(self.seconds_WG.sum())

    def series_s(self, count: int) -> Floats:
        """About so many gaps in the order of the parts [R], of each part equally many that stand for its own."""
        parts = np.unique(self.part_N)
        each = -(-count // max(len(parts), 1))
        shares = (np.arange(each) + 0.5) / max(each, 1)
        rows = [quantiles_s(pooled([self._of_parts(int(part), int(part) + 1)]), shares) for part in parts]
        return np.concatenate([np.zeros(0), *rows])

    @property
    def middle_N(self) -> Floats:
        """The middles of bins [N]."""
        middle: Floats = (_EDGES + 0.5 * _WIDTHS)[self.bin_N]
        return middle

    def statistic_s(self, quantile: float | None) -> float:
        """The mean, or a quantile; NaN of none."""
        if quantile is None:
            return self.sum_s / self.count if self.count else float("nan")
        return float(quantiles_s(pooled([self]), np.array([quantile]))[0])

    def share_within(self, limit_s: float) -> float:
        """The share of gaps that are no longer; NaN of none."""
        inside = np.clip((limit_s - _EDGES[self.bin_N]) / _WIDTHS[self.bin_N], 0.0, 1.0)
        return float((inside * self.count_N).sum() / self.count) if self.count else float("nan")


def pooled(gaps: Sequence[Gaps]) -> Ints:
    """How many of all these are in each bin [X]."""
    counts = np.zeros(f.GAP_BINS, dtype=np.int64)
    for each in gaps:
        np.add.at(counts, each.bin_N, each.count_N)
    return counts


def quantiles_s(counts: Ints, shares_Q: Floats) -> Floats:
    """The gaps that these shares of the counts [X] do not exceed [Q], bins being evenly filled; NaN of none."""
    places = np.flatnonzero(counts)
    if not len(places):
        return np.full(len(shares_Q), np.nan)
    ends = np.cumsum(counts[places])
    wanted = shares_Q * ends[-1]
    row = np.minimum(np.searchsorted(ends, wanted), len(places) - 1)
    inside = 1.0 - (ends[row] - wanted) / counts[places[row]]
    quantiles: Floats = _EDGES[places[row]] + inside * _WIDTHS[places[row]]
    return quantiles
