"""Ranking and selection by the knowledge gradient: one of many alternatives, under limits, after a few measurements.

Source: Frazier, Powell, Dayanik, "The Knowledge-Gradient Policy for Correlated Normal Beliefs", INFORMS JoC 21 (2009);
the chance of keeping a limit enters as in Gelbart, Snoek, Adams, "Bayesian Optimization with Unknown Constraints", UAI
2014. Where the scale of a belief is not known either it is a multivariate Student-t, whose scale grows where runs are
further off than was believed and shrinks where they are nearer (Shah, Wilson, Ghahramani, "Student-t Processes as
Alternatives to Gaussian Processes", AISTATS 2014, lemma 3). Chances, results that a measurement may have and draws are
of that distribution; the mean of exp(x), which a Student-t does not have, is that of a normal of the same scale.

Sets        m in M alternatives
Parameters  a_m, b_m > 0;  s, t the limits on x and on y, logarithms; t may be absent
Unknown     x, y in R^M, each jointly Gaussian, independent of each other; measuring m tells x_m and y_m up to noise of
            known variance
Reward      r_m = a_m / (exp(y_m) + b_m exp(x_m))   if x_m <= s and y_m <= t,  else 0

The logarithm of the denominator is taken as linear around the means mu_m of x_m and nu_m of y_m, with slope
w_m = b_m exp(mu_m) / (exp(nu_m) + b_m exp(mu_m)) in x_m and 1 - w_m in y_m. With deviations c_m of x_m and d_m of y_m
then (moments of a log-normal cut at a point)

    E[r_m] = a_m / (exp(nu_m) + b_m exp(mu_m)) exp((w_m^2 c_m^2 + (1 - w_m)^2 d_m^2) / 2)
             F((s - mu_m + w_m c_m^2) / c_m) G((t - nu_m + (1 - w_m) d_m^2) / d_m)

with F and G the distribution functions of x and of y.

Array suffixes: M alternatives, Z outcomes of a measurement of x, Y those of y, D draws.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from planner.arrays import Floats
from planner.errors import PlannerError

LEAST_VARIANCE = 1e-12
OUTCOMES_X = 15  # equally likely values of x_m that a measurement is averaged over; many, as they decide on the limit
OUTCOMES_Y = 3
DRAWS = 16  # of the results of measurements that were decided on and have none yet
NOTHING = 1e-9  # of the best expected reward; less is no gain


@dataclass(frozen=True, slots=True)
class Belief:
    """A Gaussian over one unknown of every alternative: means [M], covariances [M, M], variance of a measurement.

    With finite degrees of `freedom` a Student-t, of which these are the squared scales; it holds `width` of what a
    scale says.
    """

    mean_M: Floats
    covariance_MM: Floats
    noise: float
    freedom: float = math.inf
    width: float = 1.0

    def __post_init__(self) -> None:
        size = len(self.mean_M)
        if self.covariance_MM.shape != (size, size) or self.noise < 0:
            raise PlannerError(f"a belief over {size} alternatives has covariances {self.covariance_MM.shape}")

    @property
    def variance_M(self) -> Floats:
        """Variance of each alternative, never 0."""
        return np.maximum(np.diagonal(self.covariance_MM), LEAST_VARIANCE)

    @property
    def marginal(self) -> "Marginal":
        """What is believed of each alternative alone."""
        return Marginal(self.mean_M, self.width * np.sqrt(self.variance_M), self.freedom)

    def after(self, index: int, deviation_Z: Floats) -> "Marginal":
        """What would be believed of each [Z, M] after measurements of `index` so many deviations off."""
        effect_M = self.effect_M(index)
        left_M = np.maximum(self.variance_M - effect_M**2, LEAST_VARIANCE)
        scale_ZM = self.width * np.sqrt(left_M * self._wider(deviation_Z)[:, None])
        return Marginal(self.mean_M + np.outer(deviation_Z, effect_M), scale_ZM, self.freedom + 1.0)

    def outcomes(self, count: int) -> Floats:
        """Deviations of equally likely results of a measurement: the middles of `count` equal shares."""
        return self.width * _quantiles(self.freedom, count)

    def drawn(self, rng: np.random.Generator) -> float:
        """The deviation of a result."""
        draw = rng.standard_normal() if math.isinf(self.freedom) else rng.standard_t(self.freedom)
        return float(self.width * draw)

    def _wider(self, deviation: Floats) -> Floats:
        """Of the squared scales, by how much a result so many deviations off widens them."""
        if math.isinf(self.freedom):
            return np.ones_like(deviation)
        return np.asarray((self.freedom + deviation**2) / (self.freedom + 1.0))

    def effect_M(self, index: int) -> Floats:
        """How far the means move when the measurement of `index` is one deviation above its expectation [M]."""
        return np.asarray(self.covariance_MM[:, index] / math.sqrt(self.variance_M[index] + self.noise))

    def measured(self, index: int, value: float) -> "Belief":
        """The belief after alternative `index` was measured at `value`: conditioning, O(M^2)."""
        effect_M = self.effect_M(index)
        deviations = (value - self.mean_M[index]) / math.sqrt(self.variance_M[index] + self.noise)
        mean_M = self.mean_M + effect_M * deviations
        covariance_MM = self.covariance_MM - np.outer(effect_M, effect_M)
        wider = float(self._wider(np.array(deviations)))
        return Belief(mean_M, covariance_MM * wider, self.noise * wider, self.freedom + 1.0, self.width)


@dataclass(frozen=True, slots=True)
class Marginal:
    """What is believed of each alternative by itself: Student-t, normal of infinite freedom; the last axis is M."""

    mean: Floats
    scale: Floats
    freedom: float

    def below(self, limit: float, shift: Floats | float = 0.0) -> Floats:
        """The chance to lie below a limit, of values that lie so much lower."""
        from scipy.special import ndtr, stdtr

        deviations = (limit - self.mean + shift) / self.scale
        return np.asarray(ndtr(deviations) if math.isinf(self.freedom) else stdtr(self.freedom, deviations))


@dataclass(frozen=True, slots=True)
class BeliefState:
    """Alternatives, what is believed of them, and which have been measured (or are going to be)."""

    x: Belief
    y: Belief
    a_M: Floats
    b_M: Floats
    limit_x: float
    limit_y: float | None = None
    seen: frozenset[int] = frozenset()

    def after(self, index: int, x: float, y: float) -> "BeliefState":
        """The choice once alternative `index` was measured at `x` and `y`, logarithms."""
        return replace(self, x=self.x.measured(index, x), y=self.y.measured(index, y), seen=self.seen | {index})


def expected_rewards(choice: BeliefState) -> Floats:
    """E[r_m] of each alternative [M]."""
    return _rewards(choice, choice.x.marginal, choice.y.marginal)


def chances(choice: BeliefState) -> Floats:
    """The probability that each alternative keeps the limits [M]."""
    kept_M = choice.x.marginal.below(choice.limit_x)
    return kept_M if choice.limit_y is None else kept_M * choice.y.marginal.below(choice.limit_y)


def best(choice: BeliefState) -> int:
    """The alternative of the highest expected reward, the first of equal ones; where none has any, that of least x."""
    rewards_M = expected_rewards(choice)
    return int(np.argmax(rewards_M)) if rewards_M.max() > 0.0 else int(np.argmin(choice.x.mean_M))


def gains(choice: BeliefState) -> Floats:
    """The knowledge gradient [M]: by how much a measurement of m raises the expected reward of the best alternative.

    0 for those that have been measured. O(M^2 OUTCOMES_X OUTCOMES_Y).
    """
    now = float(expected_rewards(choice).max())
    unseen = [m for m in range(len(choice.a_M)) if m not in choice.seen]
    gain_M = np.zeros(len(choice.a_M))
    gain_M[unseen] = [max(_mean_best(choice, m) - now, 0.0) for m in unseen]
    return gain_M


def next_measurements(choice: BeliefState, count: int, *, seed: int) -> list[int]:
    """Up to `count` alternatives to measure before any result is known, in order of choice.

    Each is the one that gains most on average over what those before it may tell (DRAWS draws); where none gains, the
    unseen one of the highest expected reward. Fewer than `count` where the others have been seen.
    """
    rng = np.random.default_rng(seed)
    chosen: list[int] = []
    possible = [choice]
    while len(chosen) < count and (index := _next(possible)) is not None:
        chosen.append(index)
        possible = [_drawn(state, index, rng) for state in (possible * DRAWS if len(possible) == 1 else possible)]
    return chosen


def best_known(choice: BeliefState) -> float:
    """The expected reward of the best alternative for one who knows x and y of all: an upper bound on what runs gain.

    By DRAWS^2 joint draws with a seed of their own.
    """
    rng = np.random.default_rng(0)
    x_DM, y_DM = _joint(choice.x, rng), _joint(choice.y, rng)
    kept_DM = x_DM <= choice.limit_x
    if choice.limit_y is not None:
        kept_DM &= y_DM <= choice.limit_y
    rewards_DM = np.where(kept_DM, choice.a_M / (np.exp(y_DM) + choice.b_M * np.exp(x_DM)), 0.0)
    return float(rewards_DM.max(axis=1).mean())


def _next(possible: Sequence[BeliefState]) -> int | None:
    """The best next measurement on average over equally likely states of belief, which have seen the same."""
    seen = possible[0].seen
    if len(seen) == len(possible[0].a_M):
        return None
    gain_M = np.mean([gains(state) for state in possible], axis=0)
    reward_M = np.mean([expected_rewards(state) for state in possible], axis=0)
    score_M = gain_M if gain_M.max() > NOTHING * reward_M.max() else reward_M
    score_M[list(seen)] = -1.0
    return int(np.argmax(score_M))


def _drawn(choice: BeliefState, index: int, rng: np.random.Generator) -> BeliefState:
    """The choice after a result drawn from what is believed."""
    x, y = (
        belief.mean_M[index] + math.sqrt(belief.variance_M[index] + belief.noise) * belief.drawn(rng)
        for belief in (choice.x, choice.y)
    )
    return choice.after(index, float(x), float(y))


def _joint(belief: Belief, rng: np.random.Generator) -> Floats:
    """Joint draws [D, M]; by eigenvalues, as what was measured without noise has no variance left."""
    values_M, vectors_MM = np.linalg.eigh(belief.covariance_MM)
    root_MM = vectors_MM * np.sqrt(np.maximum(values_M, 0.0))
    scale_D1 = np.full((DRAWS**2, 1), belief.width)
    if math.isfinite(belief.freedom):
        scale_D1 = scale_D1 * np.sqrt(belief.freedom / rng.chisquare(belief.freedom, (DRAWS**2, 1)))
    return np.asarray(belief.mean_M + scale_D1 * (rng.standard_normal((DRAWS**2, len(values_M))) @ root_MM.T))


def _mean_best(choice: BeliefState, index: int) -> float:
    """The expected reward of the best alternative after a measurement of `index`, over its outcomes."""
    x_ZM = choice.x.after(index, choice.x.outcomes(OUTCOMES_X))
    x_ZYM = Marginal(x_ZM.mean[:, None, :], x_ZM.scale[:, None, :], x_ZM.freedom)
    y_YM = choice.y.after(index, choice.y.outcomes(OUTCOMES_Y))
    return float(_rewards(choice, x_ZYM, y_YM).max(axis=-1).mean())


@cache
def _quantiles(freedom: float, count: int) -> Floats:
    """The middles of `count` equal shares of a standard Student-t, normal of infinite freedom."""
    from scipy.special import ndtri, stdtrit

    shares = (np.arange(count) + 0.5) / count
    return np.asarray(ndtri(shares) if math.isinf(freedom) else stdtrit(freedom, shares))


def _rewards(choice: BeliefState, x: Marginal, y: Marginal) -> Floats:
    """E[r_m] by the closed form; the last axis of all arrays is M."""
    part_x = choice.b_M * np.exp(x.mean)
    total = np.exp(y.mean) + part_x
    w, variance_x, variance_y = part_x / total, x.scale**2, y.scale**2
    spread = np.exp((w * w * variance_x + (1.0 - w) ** 2 * variance_y) / 2.0)
    rewards = choice.a_M / total * spread * x.below(choice.limit_x, w * variance_x)
    return rewards if choice.limit_y is None else rewards * y.below(choice.limit_y, (1.0 - w) * variance_y)
