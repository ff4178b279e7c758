"""Cells of stages moved between racks by simulated annealing (numba), so that the busiest uplink is less busy.

Shape suffixes: S stage, B rack.
"""

import numpy as np
from numba import njit

from planner.solvers.compilation.kept import kept
from planner.solvers.compilation.parts import part
from planner.solvers.compiled.copies import copy_rows

POWER = 12.0  # of the busy times whose sum is annealed: near enough to their maximum, and smooth


@part
def uplink_bytes(count_S, replicas, gradient_S, activation_S):
    """Bytes that leave a rack: gradients of the stages partly inside it, activations of the edges that leave it."""
    out = 0.0
    for s in range(len(count_S)):
        if 0 < count_S[s] < replicas:
            out += gradient_S[s]
    for s in range(len(count_S) - 1):
        out += activation_S[s] * abs(count_S[s] - count_S[s + 1])
    return out


@kept
@njit
def anneal(count_BS, free_B, rate_B, replicas, gradient_S, activation_S, steps, seed):
    """The counts with the shortest busiest uplink among those that the walk passes; `free_B` are nodes left over."""
    np.random.seed(seed)
    racks, stages = count_BS.shape
    busy_B = np.empty(racks)
    for b in range(racks):
        busy_B[b] = uplink_bytes(count_BS[b], replicas, gradient_S, activation_S) / rate_B[b]
    best_BS, least = count_BS.copy(), busy_B.max()
    scale = least
    for step in range(steps):
        heat = 0.3 * (1.0 - step / steps) ** 2 + 1e-4
        s, a, b = np.random.randint(stages), np.random.randint(racks), np.random.randint(racks)
        if a == b or count_BS[a, s] == 0:
            continue
        moved = 1 + np.random.randint(count_BS[a, s])
        back, other = 0, 0
        if free_B[b] < moved or np.random.random() < 0.3:
            other = np.random.randint(stages)
            if other == s or count_BS[b, other] == 0:
                continue
            back = 1 + np.random.randint(count_BS[b, other])
        if free_B[b] + back < moved or free_B[a] + moved < back:
            continue
        count_BS[a, s] -= moved
        count_BS[b, s] += moved
        count_BS[b, other] -= back
        count_BS[a, other] += back
        new_a = uplink_bytes(count_BS[a], replicas, gradient_S, activation_S) / rate_B[a]
        new_b = uplink_bytes(count_BS[b], replicas, gradient_S, activation_S) / rate_B[b]
        worse = (
            (new_a / scale) ** POWER
            + (new_b / scale) ** POWER
            - (busy_B[a] / scale) ** POWER
            - (busy_B[b] / scale) ** POWER
        )
        if worse > 0.0 and np.random.random() >= np.exp(-worse / heat):
            count_BS[a, s] += moved
            count_BS[b, s] -= moved
            count_BS[b, other] += back
            count_BS[a, other] -= back
            continue
        busy_B[a], busy_B[b] = new_a, new_b
        free_B[a] += moved - back
        free_B[b] += back - moved
        if busy_B.max() < least:
            least = busy_B.max()
            copy_rows(count_BS, best_BS)
            scale = least
            if least == 0.0:
                break
    return best_BS
