"""Where a simulated stream is stationary: the warm-up at its beginning, and the end that no later request disturbs.

The warm-up is found by MSER-5 (White, Cobb and Spratt, "A comparison of five steady-state truncation heuristics for
simulation", WSC 2000; Hoad, Robinson and Davies, "Automating warm-up length estimation", JORS 2010): of means of five
requests each, as many are cut as make the standard error of the mean of the rest the least; where that is more than
half of them, the stream is too short to tell.
"""

from collections.abc import Sequence

import numpy as np

from planner.arrays import Floats
from planner.simulate.run.result import SimulationResult

GROUP = 5  # requests of a mean
MOST_CUT = 0.5  # of a stream; a minimum beyond is no warm-up
LATE = 0.99  # of the answers take no longer than what is cut at the end


def mser5(values: Floats) -> int | None:
    """Values to cut at the beginning; None where the least error needs more than half of them, or there are too few."""
    groups = len(values) // GROUP
    if groups < 2 * GROUP:
        return None
    means = values[: groups * GROUP].reshape(groups, GROUP).mean(axis=1)
    left = np.arange(groups, 0, -1, dtype=np.float64)
    after = np.cumsum(means[::-1])[::-1]
    squares = np.cumsum((means * means)[::-1])[::-1]
    error = np.maximum(squares - after * after / left, 0.0) / (left * left)
    best = int(np.argmin(error[: groups - GROUP]))
    return best * GROUP if best <= MOST_CUT * groups else None


def warm_up(series: Sequence[Floats]) -> int | None:
    """Requests to cut at the beginning of every one of some independent streams of a process.

    Streams are averaged request by request first, which leaves of the noise little and of the warm-up all. Requests
    without a value count as the one before.
    """
    count = min(map(len, series))
    filled = [_filled(values[:count]) for values in series]
    return mser5(np.mean(filled, axis=0)) if count else None


def _filled(values: Floats) -> Floats:
    known = ~np.isnan(values)
    if known.all() or not known.any():
        return np.nan_to_num(values)
    last = np.maximum.accumulate(np.where(known, np.arange(len(values)), int(np.argmax(known))))
    return values[last]


def undisturbed(result: SimulationResult) -> int:
    """Requests of a stream that arrive so early that what comes after the last arrival touches few of them.

    Those that arrive within the time of nearly all answers before the end share their engines with ever fewer others.
    """
    arrivals, stays = result.arrival_s, result.e2e_s[result.complete]
    if not len(stays) or not len(arrivals):
        return len(arrivals)
    end_s = float(np.nanmax(arrivals)) - float(np.quantile(stays, LATE))
    return int(np.sum(arrivals <= end_s))
