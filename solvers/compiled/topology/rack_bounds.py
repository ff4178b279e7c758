"""The least bytes that cells of a rack send, and the least time that leaves room for all cells (numba).

Shape suffixes: S stage, B rack, N cells of a stage, K cells of the rack, W stages of which the rack has all or none.
"""

import numpy as np
from numba import njit

from planner.solvers.compilation.kept import kept


@kept
@njit
def least_by_whole(replicas, most, gradient_S, activation_S, told_apart):
    """The least bytes [W, K] that K cells send by stages that the rack has whole or not at all, the last W or more.

    Stage by stage, least[W, n, k] of k cells so far of which n are of the stage; the minimum over the cells n' of the
    stage before, which costs a |n - n'|, is taken in two sweeps, up and down.
    """
    counts = min(replicas, most) + 1
    least_WNK = np.full((told_apart + 1, counts, most + 1), np.inf)
    for n in range(counts):
        partly = 0 < n < replicas
        least_WNK[0 if partly else min(1, told_apart), n, n] = gradient_S[0] if partly else 0.0
    for s in range(1, len(gradient_S)):
        edge = activation_S[s - 1]
        for w in range(told_apart + 1):
            for k in range(most + 1):
                for n in range(1, counts):
                    least_WNK[w, n, k] = min(least_WNK[w, n, k], least_WNK[w, n - 1, k] + edge)
                for n in range(counts - 2, -1, -1):
                    least_WNK[w, n, k] = min(least_WNK[w, n, k], least_WNK[w, n + 1, k] + edge)
        reached_WNK = least_WNK
        least_WNK = np.full((told_apart + 1, counts, most + 1), np.inf)
        for w in range(told_apart + 1):
            for n in range(counts):
                partly = 0 < n < replicas
                after = w if partly else min(w + 1, told_apart)
                added = gradient_S[s] if partly else 0.0
                for k in range(n, most + 1):
                    least_WNK[after, n, k] = min(least_WNK[after, n, k], reached_WNK[w, n, k - n] + added)
    least_WK = np.full((told_apart + 1, most + 1), np.inf)
    for w in range(told_apart + 1):
        for n in range(counts):
            for k in range(most + 1):
                least_WK[w, k] = min(least_WK[w, k], least_WNK[w, n, k])
    return least_WK


@kept
@njit
def least_time_s(least_K, free_B, rate_B, cells, dust):
    """The least time at which racks have room for so many cells together, each for as many as it sends by then."""
    times = np.empty(free_B.sum() + len(free_B))
    filled = 0
    for b in range(len(free_B)):
        for k in range(free_B[b] + 1):
            times[filled] = least_K[k] / rate_B[b]
            filled += 1
    times.sort()
    low, high = 0, filled - 1
    while low < high:
        middle = (low + high) // 2
        room = 0
        for b in range(len(free_B)):
            sent = times[middle] * rate_B[b] * (1.0 + dust)
            k = free_B[b]
            while k > 0 and not least_K[k] <= sent:
                k -= 1
            room += k
        if room >= cells:
            high = middle
        else:
            low = middle + 1
    return times[low]
