"""Optimal checkpoint interval by renewal reward: the share of time whose work counts, and the interval with the most.

Sources: Young, CACM 17 (1974); Daly, FGCS 22 (2006), section 3, for one kind of failure and blocking saves. Here the
same renewal argument holds for three kinds of failure at once, saves that become durable later, and saves at the moment
of failure; each is exact for failures without memory (exponential gaps).

Sets        k in K hazards, each of one kind: it loses nothing but the step in progress (state saved at the failure),
            what came after the last snapshot, or what came after the last durable snapshot
Parameters  l_k [1/s], R_k [s] rate and restart time of a hazard;  D_k [s] from the failure to the end of the save that
            it leads to, part of R_k;  h [s] a step;  C [s] the pause of a snapshot;  B [s] from a snapshot to its
            durability;  l = sum l_k;  b the share of l that loses all that is not durable
Variable    n in N, steps between snapshots, counted from the last save of any kind
Maximise    n -> W(n) / U(n) / (1 + l r)

A cycle begins at a save and ends at the next one or at a failure, after U(n) = (1 - c q^n) / l seconds on average, with
q = exp(-l h) and c = exp(-l C). It yields, in steps of h seconds,

    W(n) = n c q^n d + a (sum_{i<n} i q^i (1 - q) + n q^n (1 - c))

where a = x / (1 - y), x = sum l_k / l g_k, y = sum l_k / l (1 - g_k) over hazards that are saved, g_k = exp(-l D_k), is
the share of failures after which a save ends before a failure that it does not survive, and
d = 1 - b / (a + b) (1 - exp(-l (a + b) B)) the chance that a snapshot becomes durable, or is overtaken by a save at a
failure, before a failure takes it; it needs B <= n h + C. Restarts interrupted by failures
begin anew: r = s / (l (1 - s)), s = sum_k l_k / l (1 - exp(-l R_k)), is the mean time from a failure to running again.

With y = q^n both numerator and denominator are affine in y, but for c (d - a) y ln(1/y) / (l h) in the numerator. So
for d >= a the ratio is quasi-concave in n, and for d <= a quasi-convex: the best n is found by narrowing a grid, or
lies at one end.

Array suffix: N interval lengths.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike

from planner.arrays import Floats
from planner.errors import PlannerError
from planner.solvers.result import SolveResult, Status

GRID = 65  # points of one narrowing of the search


class Loss(StrEnum):
    """What a failure takes."""

    STEP = "step"  # the step in progress: the state is saved at the failure
    UNSAVED = "unsaved"  # what came after the last snapshot
    UNDURABLE = "undurable"  # what came after the last durable snapshot


@dataclass(frozen=True, slots=True)
class Hazard:
    """One kind of failure; `restart_s` runs from the failure to the next step, a save at the failure included."""

    rate_per_s: float
    restart_s: float
    loss: Loss = Loss.UNSAVED
    saved_after_s: float = 0.0  # with Loss.STEP: until the save is complete


@dataclass(frozen=True, slots=True)
class Saving:
    """How work is saved."""

    step_s: float
    pause_s: float = 0.0  # of every snapshot
    durable_after_s: float = 0.0

    def least_steps(self) -> int:
        """The fewest steps between snapshots for which one is durable before the next is taken."""
        return max(1, math.ceil(round((self.durable_after_s - self.pause_s) / self.step_s, 9)))


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of wall-clock time [N]; they sum to 1."""

    effective: Floats
    pause: Floats  # snapshots
    rework: Floats  # work that a failure took
    restart: Floats


def time_shares(hazards: Sequence[Hazard], saving: Saving, steps: ArrayLike) -> Shares:
    """Where wall-clock time goes [N] with a snapshot every `steps` [N] steps.

    Raises PlannerError for rates, times or steps outside their range.
    """
    n = np.asarray(steps, dtype=np.float64)
    _require(hazards, saving, n)
    rate = sum(hazard.rate_per_s for hazard in hazards)
    h, C = saving.step_s, saving.pause_s
    if rate == 0.0:
        effective = n * h / (n * h + C)
        return Shares(effective, 1.0 - effective, np.zeros_like(n), np.zeros_like(n))
    reached = np.exp(-rate * h * n)  # q^n: the chance that a cycle reaches its snapshot
    up_s = -np.expm1(-rate * (h * n + C)) / rate
    running = 1.0 / (1.0 + rate * _mean_restart_s(hazards, rate))
    effective = running * h * _steps_kept(hazards, saving, rate, n) / up_s
    pause = running * reached * -math.expm1(-rate * C) / rate / up_s
    restart = np.full_like(n, 1.0 - running)
    return Shares(effective, pause, np.maximum(1.0 - effective - pause - restart, 0.0), restart)


def effective_share(hazards: Sequence[Hazard], saving: Saving, steps: ArrayLike) -> Floats:
    """The share of wall-clock time [N] whose work counts, with a snapshot every `steps` [N] steps."""
    return time_shares(hazards, saving, steps).effective


def best_interval(hazards: Sequence[Hazard], saving: Saving, most_steps: int) -> SolveResult[int]:
    """The number of steps between snapshots with the largest effective share, up to `most_steps`; O(log most_steps).

    INFEASIBLE where no snapshot is durable before the next one is due.
    """
    started = time.perf_counter()
    low, high = saving.least_steps(), most_steps
    if low > high:
        return SolveResult(Status.INFEASIBLE, "finished", None, None, None, time.perf_counter() - started)
    if _single_peak(hazards, saving):
        low, high = _narrowed(hazards, saving, low, high)
    steps = np.unique([*range(low, min(high, low + GRID) + 1), high])
    shares = effective_share(hazards, saving, steps)
    best = int(np.argmax(shares))
    value = float(shares[best])
    return SolveResult(Status.OPTIMAL, "finished", int(steps[best]), value, value, time.perf_counter() - started)


def _steps_kept(hazards: Sequence[Hazard], saving: Saving, rate: float, n: Floats) -> Floats:
    """W(n) [N]."""
    saved, durable = _chances(hazards, saving, rate)
    exponent = rate * saving.step_s
    reached, c = np.exp(-exponent * n), math.exp(-rate * saving.pause_s)
    partial = np.exp(-exponent) * np.expm1(-exponent * (n - 1.0)) / math.expm1(-exponent) - (n - 1.0) * reached
    return np.asarray(n * c * reached * durable + saved * (partial + n * reached * (1.0 - c)))


def _chances(hazards: Sequence[Hazard], saving: Saving, rate: float) -> tuple[float, float]:
    """a, the share of failures after which a save ends, and d, the chance that a snapshot is not taken by a failure."""
    saved = [hazard for hazard in hazards if hazard.loss is Loss.STEP]
    x = sum(hazard.rate_per_s / rate * math.exp(-rate * hazard.saved_after_s) for hazard in saved)
    y = sum(-hazard.rate_per_s / rate * math.expm1(-rate * hazard.saved_after_s) for hazard in saved)
    a = x / (1.0 - y)
    b = sum(hazard.rate_per_s for hazard in hazards if hazard.loss is Loss.UNDURABLE) / rate
    if b == 0.0:
        return a, 1.0
    return a, 1.0 + b / (a + b) * math.expm1(-rate * (a + b) * saving.durable_after_s)


def _mean_restart_s(hazards: Sequence[Hazard], rate: float) -> float:
    """r: the mean time from a failure to running again."""
    interrupted = sum(-hazard.rate_per_s / rate * math.expm1(-rate * hazard.restart_s) for hazard in hazards)
    return interrupted / (rate * (1.0 - interrupted))


def _single_peak(hazards: Sequence[Hazard], saving: Saving) -> bool:
    """Whether the share is quasi-concave in n; else it is quasi-convex."""
    rate = sum(hazard.rate_per_s for hazard in hazards)
    if rate == 0.0:
        return True
    saved, durable = _chances(hazards, saving, rate)
    return durable >= saved


def _narrowed(hazards: Sequence[Hazard], saving: Saving, low: int, high: int) -> tuple[int, int]:
    """An interval of at most GRID steps that holds the peak."""
    while high - low > GRID:
        grid = np.unique(np.linspace(low, high, GRID).round().astype(np.int64))
        best = int(np.argmax(effective_share(hazards, saving, grid)))
        low, high = int(grid[max(best - 1, 0)]), int(grid[min(best + 1, len(grid) - 1)])
    return low, high


def _require(hazards: Sequence[Hazard], saving: Saving, steps: Floats) -> None:
    times = [saving.pause_s, saving.durable_after_s]
    times += [time for hazard in hazards for time in (hazard.rate_per_s, hazard.restart_s, hazard.saved_after_s)]
    if saving.step_s <= 0.0 or any(not math.isfinite(value) or value < 0.0 for value in times):
        raise PlannerError("rates and times of failures and saves must be finite and not negative, a step above 0")
    least = saving.least_steps()
    if np.any(steps < least):
        fewest = int(steps.min())
        raise PlannerError(
            f"a snapshot every {fewest} steps, and it is durable after {saving.durable_after_s:g} s",
            hint=f"leave at least {least} steps of {saving.step_s:g} s between snapshots",
        )
