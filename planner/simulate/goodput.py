"""Goodput: the highest rate at which a fleet keeps all limits of its requests, found by bisection on the same draws."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.problem.schema import SloSpec
from planner.simulate.attainment import Draws, kept
from planner.simulate.engine import simulate
from planner.simulate.fleet import Fleet
from planner.simulate.summary import saturated

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
    result = simulate(fleet, draws.requests(rate_per_s), seed=seed)
    return kept(result, slo, draws.warm_up) and not saturated(result)


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
    """The highest rate that keeps all limits, to `tolerance`, at most `most_per_s`; 0 where none does, inf where all.

    Where not even `least_per_s` is kept, one run says so, and the answer is 0.
    """
    runs = 0

    def good(rate: float) -> bool:
        nonlocal runs
        runs += 1
        return keeps(fleet, draws, slo, rate, seed=seed)

    if not most_per_s > least_per_s:
        return Goodput(0.0, runs)
    if least_per_s > 0.0 and not good(least_per_s):
        return Goodput(0.0, runs)
    low, high = least_per_s, most_per_s
    if not math.isfinite(high):
        high = max(2.0 * low, 1.0)
        while good(high):
            if high > HIGHEST_PER_S:
                return Goodput(math.inf, runs)
            low, high = high, 2.0 * high
    while high > low * (1.0 + tolerance):
        if low == 0.0 and high <= SMALLEST * most_per_s:
            return Goodput(0.0, runs)
        middle = math.sqrt(low * high) if low > 0.0 else high / 2.0
        low, high = (middle, high) if good(middle) else (low, middle)
    return Goodput(low, runs)


def interval(
    fleet: Fleet, streams: Sequence[Draws], slo: SloSpec, *, near_per_s: float, most_per_s: float
) -> tuple[float, float]:
    """The 95 % interval of the goodput by as many independent streams as are given (Student's t over their goodputs).

    `near_per_s` is where it is looked for first.
    """
    found = []
    for stream in streams:
        low, high = 0.0, most_per_s
        for step in (0.97, 0.9, 0.75):
            if keeps(fleet, stream, slo, near_per_s * step):
                low = near_per_s * step
                break
            high = near_per_s * step
        found.append(_between(fleet, stream, slo, low, high, near_per_s))
    mean, spread = float(np.mean(found)), float(np.std(found, ddof=1))
    half = STUDENT_95[len(found)] * spread / math.sqrt(len(found))
    return max(mean - half, 0.0), mean + half


def _between(fleet: Fleet, stream: Draws, slo: SloSpec, low: float, high: float, near: float) -> float:
    """The goodput between a rate that is kept and one that may not be, looking close to `near` first."""
    for step in (1.03, 1.1, 1.3):
        if low < near * step < high:
            if not keeps(fleet, stream, slo, near * step):
                high = near * step
                break
            low = near * step
    return goodput(fleet, stream, slo, most_per_s=high, least_per_s=low).rate_per_s
