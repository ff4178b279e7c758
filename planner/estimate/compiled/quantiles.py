"""numba counts of gaps between tokens in narrow bins, and quantiles of them and of the times of requests.

Bins are of equal width in the logarithm, so that factors by which steps are longer move counts by whole bins.
"""

import numpy as np
from numba import njit

from planner.solvers.compilation.kept import kept
from planner.solvers.compilation.parts import part

BINS = 4096
WIDTH = 0.005  # of a bin, in the logarithm
LEAST_S = 1e-6  # the first bin's end; the last one's is 780 s
REACH = 4.0  # deviations to which factors are followed


@part
def count_gaps(counts, gap_s, number):
    """Counts so many gaps [BINS]; nothing where there are no bins."""
    if len(counts) > 0 and number > 0.0:
        place = int(np.log(max(gap_s, LEAST_S) / LEAST_S) / WIDTH)
        counts[min(place, BINS - 1)] += number


@kept
@njit
def gap_quantiles(counts, deviation, levels, out):
    """Of gaps times independent lognormal factors of mean 1 and this deviation of the logarithm; NaN of none."""
    spread = counts
    reach = int(np.ceil(REACH * deviation / WIDTH))
    if reach > 0:
        spread = np.zeros(BINS)
        taps = np.exp(-0.5 * ((np.arange(-reach, reach + 1) + 0.5 * deviation**2 / WIDTH) * WIDTH / deviation) ** 2)
        taps /= np.sum(taps)
        for place in np.nonzero(counts)[0]:
            for tap in range(2 * reach + 1):
                spread[min(max(place + tap - reach, 0), BINS - 1)] += counts[place] * taps[tap]
    total, level = np.sum(spread), 0
    out[:] = np.nan
    if total == 0.0:
        return
    below = 0.0
    for place in range(BINS):
        while level < len(levels) and spread[place] > 0.0 and below + spread[place] >= levels[level] * total:
            inside = (levels[level] * total - below) / spread[place]
            out[level] = LEAST_S * np.exp((place + min(max(inside, 0.0), 1.0)) * WIDTH)
            level += 1
        below += spread[place]


@kept
@njit
def weighted_quantiles(values, first, later, levels, out):
    """Of values of which the first so many weigh 1, those after them `later` each."""
    order = np.argsort(values)
    total = min(first, len(values)) + later * max(len(values) - first, 0)
    below, level = 0.0, 0
    for place in order:
        below += 1.0 if place < first else later
        while level < len(levels) and below >= levels[level] * total * (1.0 - 1e-12):
            out[level] = values[place]
            level += 1
