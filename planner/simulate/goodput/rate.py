"""Goodput of a fleet: bisection for the highest rate that keeps the SLO, on the same draws at every rate."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from planner.problem.slo import SloSpec
from planner.simulate.fleet.instances import Fleet
from planner.simulate.run.attainment import Draws
from planner.simulate.run.mixture import Mixture

TOLERANCE = 0.01  # of a rate, relative
HIGHEST_PER_S = 1e6  # beyond it all requests of the draws come at once, and are served on time
SMALLEST = 1e-3  # of the highest rate that is possible; a goodput below it counts as none
STUDENT_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}


@dataclass(frozen=True, slots=True)
class Goodput:
    """The rate found, and how many runs it took."""

    rate_per_s: float
    runs: int


def keeps(fleet: Fleet, draws: Draws, slo: SloSpec, rate_per_s: float, *, seed: int = 0) -> bool:
    """Whether a run at this rate keeps every limit, and waits do not grow for as long as requests come."""
    return Mixture((draws,), (slo,)).keeps(fleet, rate_per_s, seed=seed)


def goodput(
    fleet: Fleet,
    draws: Draws,
    slo: SloSpec,
    *,
    most_per_s: float,
    least_per_s: float = 0.0,
    tolerance: float = TOLERANCE,
    seed: int = 0,
) -> Goodput:
    """The highest rate at which a fleet keeps all limits (`highest_kept`)."""
    return highest_kept(
        lambda rate: keeps(fleet, draws, slo, rate, seed=seed),
        most_per_s=most_per_s,
        least_per_s=least_per_s,
        tolerance=tolerance,
    )


def highest_kept(
    good: Callable[[float], bool], *, most_per_s: float, least_per_s: float = 0.0, tolerance: float = TOLERANCE
) -> Goodput:
    """The highest rate that is good, to `tolerance`, at most `most_per_s`; 0 where none is, inf where all are.

    Where not even `least_per_s` is good, one run says so, and the answer is 0.
    """
    runs = 0

    def tried(rate: float) -> bool:
        nonlocal runs
        runs += 1
        return good(rate)

    if not most_per_s > least_per_s:
        return Goodput(0.0, runs)
    if least_per_s > 0.0 and not tried(least_per_s):
        return Goodput(0.0, runs)
    low, high = least_per_s, most_per_s
    if not math.isfinite(high):
        high = max(2.0 * low, 1.0)
        while tried(high):
            if high > HIGHEST_PER_S:
                return Goodput(math.inf, runs)
            low, high = high, 2.0 * high
    while high > low * (1.0 + tolerance):
        if low == 0.0 and high <= SMALLEST * most_per_s:
            return Goodput(0.0, runs)
        middle = math.sqrt(low * high) if low > 0.0 else high / 2.0
        low, high = (middle, high) if tried(middle) else (low, middle)
    return Goodput(low, runs)


def interval(
    streams: Sequence[Callable[[float], bool]], *, near_per_s: float, most_per_s: float
) -> tuple[float, float]:
    """The 95 % interval of the goodput by independent streams (Student's t over their goodputs).

    Each stream says whether it keeps the limits at a rate; `near_per_s` is where its goodput is looked for first. It is
    without end where a stream keeps the limits at every rate.
    """
    goodputs = []
    for good in streams:
        low, high = 0.0, most_per_s
        for step in (0.97, 0.9, 0.75):
            if good(near_per_s * step):
                low = near_per_s * step
                break
            high = near_per_s * step
        goodputs.append(_between(good, low, high, near_per_s))
    if math.inf in goodputs:
        return 0.0, math.inf
    mean, spread = float(np.mean(goodputs)), float(np.std(goodputs, ddof=1))
    half = STUDENT_95[len(goodputs)] * spread / math.sqrt(len(goodputs))
    return max(mean - half, 0.0), mean + half


def _between(good: Callable[[float], bool], low: float, high: float, near: float) -> float:
    """The goodput between a rate that is good and one that may not be, looking close to `near` first."""
    for step in (1.03, 1.1, 1.3):
        if low < near * step < high:
            if not good(near * step):
                high = near * step
                break
            low = near * step
    return highest_kept(good, most_per_s=high, least_per_s=low).rate_per_s
