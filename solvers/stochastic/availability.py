"""Machine repair with batch failures (M/G/infinity): how often too many units are away, how fast the slowest of all is.

Source: the M/G/infinity queue (Takacs, "Introduction to the Theory of Queues", 1962, chapter 3): with arrivals without
memory, the number of units away is Poisson distributed whatever the distribution of repair times. Units that leave
together are counted together (compound Poisson).

Sets        k in K causes;  s = 0, 1, 2, ... spare units
Parameters  f_k [1/s] rate of a cause, g_k units that it takes at once, m_k [s] mean time away
            away = sum_k g_k Poisson(f_k m_k)
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats
from planner.errors import PlannerError
from planner.solvers.result import SolveResult, Status


@dataclass(frozen=True, slots=True)
class Outage:
    """A cause that takes `units` at once, for `away_s` in the mean."""

    rate_per_s: float
    away_s: float
    units: int = 1

    @property
    def load(self) -> float:
        """The mean number of outages at a time."""
        return self.rate_per_s * self.away_s


@dataclass(frozen=True, slots=True)
class Slowness:
    """Units that run at a fraction `speed` of the others for `lasting_s` in the mean."""

    rate_per_s: float
    lasting_s: float
    speed: float


def best_spares(
    outages: Sequence[Outage], value: Callable[[int, float], float], most: int
) -> SolveResult[tuple[int, float]]:
    """The number of spares up to `most` with the highest `value(spares, shortage)`, and its shortage; O(most^2).

    Every number is evaluated, so the bound is the objective.
    """
    started = time.perf_counter()
    together = np.cumsum(_away(outages, most))
    missing = [max(0.0, float(1.0 - within)) for within in together]
    values = [value(spares, missing[spares]) for spares in range(most + 1)]
    best = int(np.argmax(values))
    solution = (best, missing[best])
    return SolveResult(
        Status.OPTIMAL, "finished", solution, values[best], values[best], time.perf_counter() - started, "enumeration"
    )


def mean_speed(slow: Sequence[Slowness]) -> float:
    """The mean over time of the speed of the slowest unit, 1 where none is slow.

    The speed is at least v while no slowness below v is present, with chance exp(-sum of the loads below v).
    """
    if any(not 0.0 < slowness.speed <= 1.0 for slowness in slow):
        raise PlannerError("a slow unit runs at a fraction of the speed of the others, above 0 and at most 1")
    speeds = sorted({slowness.speed for slowness in slow} | {1.0})
    absent = [
        math.exp(-sum(slowness.rate_per_s * slowness.lasting_s for slowness in slow if slowness.speed < speed))
        for speed in speeds
    ]
    none_up_to = [*absent[1:], 0.0]
    slowest = [above - upto for above, upto in zip(absent, none_up_to, strict=True)]
    return sum(chance * speed for chance, speed in zip(slowest, speeds, strict=True))


def _away(outages: Sequence[Outage], most: int) -> Floats:
    """The chance that exactly 0, 1, ..., `most` units are away."""
    if any(outage.rate_per_s < 0.0 or outage.away_s < 0.0 or outage.units < 1 for outage in outages):
        raise PlannerError("outages need rates and times that are not negative, and take one unit or more")
    chances = np.zeros(most + 1)
    chances[0] = 1.0
    for outage in outages:
        if outage.load:
            events = np.arange(most // outage.units + 1)
            log_factorials = np.append(0.0, np.cumsum(np.log(events[1:])))
            single = np.zeros(most + 1)
            single[:: outage.units] = np.exp(events * math.log(outage.load) - outage.load - log_factorials)
            chances = np.convolve(chances, single)[: most + 1]
    return chances
