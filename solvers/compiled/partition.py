"""Linear partitioning (numba): the dynamic programs of `planner.solvers.partition`."""

import numpy as np
from numba import njit

from planner.solvers.compilation.kept import kept


@kept
@njit
def cut(cost_SII, least_S):
    """(count_S, bottleneck) of the cut with the least slowest stage, then the least sum of squares; counts -1 if none.

    cost_SII[s, i, j]: stage s with items i to j - 1, infinite where they do not fit.
    """
    S, I = cost_SII.shape[0], cost_SII.shape[1] - 1
    best_SI = np.full((S + 1, I + 1), np.inf)
    best_SI[0, 0] = 0.0
    for s in range(S):
        for j in range(least_S[s], I + 1):
            for i in range(j - least_S[s] + 1):
                worst = max(best_SI[s, i], cost_SII[s, i, j])
                if worst < best_SI[s + 1, j]:
                    best_SI[s + 1, j] = worst
    count_S = np.full(S, -1, np.int64)
    bottleneck = best_SI[S, I]
    if not np.isfinite(bottleneck):
        return count_S, bottleneck
    most = bottleneck * (1.0 + 1e-12)
    even_SI = np.full((S + 1, I + 1), np.inf)
    from_SI = np.zeros((S + 1, I + 1), np.int64)
    even_SI[0, 0] = 0.0
    for s in range(S):
        for j in range(least_S[s], I + 1):
            for i in range(j - least_S[s] + 1):
                cost = cost_SII[s, i, j]
                if cost <= most and even_SI[s, i] + cost * cost < even_SI[s + 1, j]:
                    even_SI[s + 1, j] = even_SI[s, i] + cost * cost
                    from_SI[s + 1, j] = i
    j = I
    for s in range(S, 0, -1):
        count_S[s - 1] = j - from_SI[s, j]
        j = from_SI[s, j]
    return count_S, bottleneck
