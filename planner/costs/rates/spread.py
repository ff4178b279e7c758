"""80 % prediction intervals: log of the bounds over the estimate, linear in a few features of the deployment.

The features say how far an estimate is from steady state: 1, q and q^2, with q the logarithm of the predicted time to
first token over that of an idle deployment. Where requests queue, small errors of rates become large ones of times.

Runs of a group (model, formats, GPU and engine) err together. Of groups that a fit has seen little of that is left;
those of others may lie `between` groups too, beside what they differ by among themselves: w, the bound above, becomes
sqrt(w^2 + between^2).

A few runs of one's own group are evidence on where it lies (`GroupBias`): its steps are as much longer or shorter, and
what is left to know of it takes the place of what lies between groups.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from planner.arrays import Floats
from planner.models.architecture import Architecture

FEATURES = ("constant", "queue", "queue_squared")
SIDES = ("low", "high", "between")  # of an interval in a calibration file
MOST_QUEUE = 20.0  # times the idle one: longer queues say no more of how wide errors are
WIDEST = 4.0  # logarithm of a bound over its estimate
LAYOUT_SIZES = 5  # that tell layouts apart
LEAST_WITHIN = 0.01  # deviation of a run: benchmarks repeat to a percent
MIDDLE_80 = 0.9  # share below the upper end of the middle 80 %
NORMAL_80 = 1.2815515655446004  # deviations of a normal either side of the middle 80 %
ERRORS_TOGETHER = 0.2  # correlation of errors of both times: `benchmarks/serving_intervals.py`, docs/accuracy.md
NODES = 32  # of the quadrature over what errors have in common


@dataclass(frozen=True, slots=True)
class SeenRun:
    """A run of a group: where its deployment lies (`planner.estimate.own_runs`), and how far it was from the costs."""

    load: float
    layout: tuple[float, ...]
    lengths: tuple[float, ...]
    error: float  # logarithm of the measured time per output token over that of the costs alone


@dataclass(frozen=True, slots=True)
class GroupBias:
    """What is believed of the logarithm of measured over predicted step times of a group: normal."""

    mean: float
    deviation: float
    runs: int  # that it rests on
    seen: tuple[SeenRun, ...] = ()  # these runs, where they are one's own

    @classmethod
    def unseen(cls, between: tuple[float, float]) -> "GroupBias":
        """Before any run, of a group that no fit has seen: estimates stand, as wide as both sides `between` groups."""
        return cls(0.0, float(np.hypot(*between)) / 2**0.5 / NORMAL_80, 0)

    def after(self, errors: Floats, deviations: Floats) -> "GroupBias":
        """After runs that the costs alone err by so much [N], with deviations within the group (normal-normal).

        Gelman et al., Bayesian Data Analysis, 3rd ed., section 2.5: precisions add, means are weighted by them.
        """
        if self.deviation == 0.0:
            return replace(self, runs=self.runs + len(errors))
        weights = 1.0 / np.square(deviations)
        precision = 1.0 / self.deviation**2 + float(weights.sum())
        mean = (self.mean / self.deviation**2 + float(np.sum(weights * errors))) / precision
        return GroupBias(mean, precision**-0.5, self.runs + len(errors))


@dataclass(frozen=True, slots=True)
class ErrorSpread:
    """Coefficients of both bounds, one a feature; all zero where none were fitted."""

    low: tuple[float, ...] = (0.0, 0.0, 0.0)
    high: tuple[float, ...] = (0.0, 0.0, 0.0)
    between: tuple[float, float] = (0.0, 0.0)  # below and above, of groups
    unseen: bool = False  # whether the group is one that the fit has not seen

    def elsewhere(self) -> "ErrorSpread":
        """That of a group which the fit has not seen."""
        return replace(self, unseen=True)

    def known(self, deviation: float) -> "ErrorSpread":
        """That of a group whose own runs leave this deviation of the logarithm to know."""
        left = NORMAL_80 * deviation
        return replace(self, between=(left, left), unseen=True)

    def within(self, low: Floats, high: Floats) -> Floats:
        """Deviations of runs of one group [N], from the logarithms of both bounds over the estimate."""
        sides = (
            np.sqrt(np.maximum(np.square(side) - own**2, 0.0))
            for side, own in zip((low, high), self._apart, strict=True)
        )
        return np.asarray(np.maximum(sum(sides) / 2.0 / NORMAL_80, LEAST_WITHIN))

    def margin(self, confidence: float) -> float:
        """The truth over an estimate that it is no longer than with so much confidence, where nothing queues.

        The upper bound holds with 90 %; others by a Gaussian.
        """
        return math.exp(NormalDist().inv_cdf(confidence) / NORMAL_80 * self.sides[1])

    def bounds(self, estimate: Floats, features_NF: Floats) -> tuple[Floats, Floats]:
        """Both bounds [N]; the estimate lies between them."""
        low = np.clip(np.sum(features_NF * np.array(self.low), axis=1), -WIDEST, 0.0)
        high = np.clip(np.sum(features_NF * np.array(self.high), axis=1), 0.0, WIDEST)
        below, above = self._apart
        return estimate * np.exp(-np.hypot(low, below)), estimate * np.exp(np.hypot(high, above))

    @property
    def sides(self) -> tuple[float, float]:
        """Logarithms of an estimate over the lower bound, and of the upper over it, where nothing queues."""
        low, high = (min(self.low[0], 0.0), max(self.high[0], 0.0))
        return float(np.hypot(low, self._apart[0])), float(np.hypot(high, self._apart[1]))

    def chance(self, room: float) -> float:
        """That the truth is below `room` times the estimate in steady state; its logarithm is normal on either side."""
        return chance_within(room, *self.sides)

    @property
    def _apart(self) -> tuple[float, float]:
        return self.between if self.unseen else (0.0, 0.0)


def chance_within(room: float, low: float, high: float, freedom: float = math.inf) -> float:
    """That the truth is below `room` times an estimate, whose middle 80 % reach `low` down and `high` up in logarithms.

    Normal on either side, or Student-t.
    """
    side = high if room >= 1.0 else low
    if side == 0.0:
        return float(room >= 1.0)
    if math.isinf(freedom):
        return NormalDist().cdf(math.log(room) / side * NORMAL_80)
    from scipy.special import stdtr, stdtrit

    return float(stdtr(freedom, math.log(room) / side * float(stdtrit(freedom, MIDDLE_80))))


def all_hold(chances: Sequence[float], correlation: float = ERRORS_TOGETHER) -> float:
    """That limits on times hold together that hold with these `chances` [T], where logarithms of errors are normal.

    So much of the variance of every error is common to all, and given that they are independent (Vasicek, Probability
    of Loss on Loan Portfolio, 1987). Integrated by Gauss-Hermite quadrature.
    """
    if min(chances, default=1.0) <= 0.0:
        return 0.0
    levels = [NormalDist().inv_cdf(chance) for chance in chances if chance < 1.0]
    if len(levels) < 2:
        return min(chances, default=1.0)
    common, weights = np.polynomial.hermite_e.hermegauss(NODES)
    own, shared = (1.0 - correlation) ** 0.5, correlation**0.5
    kept = [math.prod(NormalDist().cdf((level - shared * x) / own) for level in levels) for x in common]
    return float(np.average(kept, weights=weights))


def group_of_runs(arch: Architecture, accelerator: str, engine: str) -> str:
    """What runs err together in: sizes of the model, formats of its layers, GPU and engine."""
    formats = arch.precisions
    sizes = f"{arch.num_layers}x{arch.hidden_size}x{arch.vocab_size}"
    return f"{sizes} {formats.ffn}/{formats.experts} {accelerator} {engine}"


def features_of(ttft_s: Floats, idle_ttft_s: Floats) -> Floats:
    """[N, F] from the predicted time to first token, and that of a request that finds the deployment idle."""
    queue = np.log(np.clip(ttft_s / np.maximum(idle_ttft_s, 1e-9), 1.0, MOST_QUEUE))
    return np.stack([np.ones_like(queue), queue, queue**2], axis=1)
