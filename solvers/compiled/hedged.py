"""Robust rescheduling (numba): copies on bins under uncertain weights and a price a move, by local search.

The weights of items are random: independent with variance `variance_E`, plus common factors `factor_FE` (the change of
every weight when the factor moves by one standard deviation). A bin's time is the mean of its load plus `z` standard
deviations, by its speed. Shape suffixes: E item, R bin, P slot (bin-major), F factor, K = 2 + F component of a load:
mean, variance, then factors.
"""

import numpy as np
from numba import njit

from planner.solvers.compilation.kept import kept
from planner.solvers.compilation.parts import owning_part, part
from planner.solvers.compiled.copies import copy_row

CHEAP = 0.25  # what a change that moves nothing is taken to cost, in moves


@part
def _time(A_K, z, speed):
    variance = A_K[1]
    for k in range(2, len(A_K)):
        variance += A_K[k] * A_K[k]
    return (A_K[0] + z * np.sqrt(max(variance, 0.0))) / speed


@part
def _time_with(A_K, out_K, in_K, z, speed):
    """Time of a bin after a copy with components `out_K` leaves it and one with `in_K` comes."""
    variance = A_K[1] - out_K[1] + in_K[1]
    for k in range(2, len(A_K)):
        part = A_K[k] - out_K[k] + in_K[k]
        variance += part * part
    return (A_K[0] - out_K[0] + in_K[0] + z * np.sqrt(max(variance, 0.0))) / speed


@part
def _components(e, copies, mean_E, variance_E, factor_FE, X_K):
    X_K[0] = mean_E[e] / copies
    X_K[1] = variance_E[e] / (copies * copies)
    for k in range(len(factor_FE)):
        X_K[2 + k] = factor_FE[k, e] / copies


@part
def _loads(item_P, bin_P, X_EK, A_RK):
    A_RK[:] = 0.0
    for p in range(len(item_P)):
        for k in range(A_RK.shape[1]):
            A_RK[bin_P[p], k] += X_EK[item_P[p], k]


@part
def _price(e, here, there, resident_ER):
    """Moves added when a copy of `e` goes from bin `here` to `there`; -1 as bin `here` of a copy that is new."""
    moves = 0 if resident_ER[e, there] else 1
    if here >= 0 and not resident_ER[e, here]:
        moves -= 1
    return moves


@part
def _best_swap(r, item_P, first_R, X_EK, A_RK, time_R, z, speed_R, placed_ER, allowed_ER, resident_ER, goal):
    """The swap out of bin `r` that lowers the time above `goal` most for each move it costs: (a, b, worth)."""
    best_a, best_b, best_worth = -1, -1, 0.0
    slowest = time_R[r] * (1.0 - 1e-9)
    for q in range(len(speed_R)):
        if q == r or time_R[q] >= slowest:
            continue
        before = time_R[r] - goal + max(time_R[q] - goal, 0.0)
        for a in range(first_R[r], first_R[r + 1]):
            e = item_P[a]
            if placed_ER[e, q] or not allowed_ER[e, q]:
                continue
            for b in range(first_R[q], first_R[q + 1]):
                f = item_P[b]
                if placed_ER[f, r] or not allowed_ER[f, r]:
                    continue
                new_r = _time_with(A_RK[r], X_EK[e], X_EK[f], z, speed_R[r])
                if new_r >= slowest:
                    continue
                new_q = _time_with(A_RK[q], X_EK[f], X_EK[e], z, speed_R[q])
                if new_q >= slowest:
                    continue
                price = max(_price(e, r, q, resident_ER) + _price(f, q, r, resident_ER), 0) + CHEAP
                worth = (before - max(new_r - goal, 0.0) - max(new_q - goal, 0.0)) / price
                if worth > best_worth:
                    best_a, best_b, best_worth = a, b, worth
    return best_a, best_b, best_worth


@part
def _lowered(e, f, q, r, Xe_K, Xf_K, X_EK, A_RK, time_R, z, speed_R, placed_ER, goal, spare_K):
    """Fall of the time above `goal` when the copy of `f` on bin `q` becomes one of `e`; -1 where some bin ends slower
    than bin `r` is now. `Xe_K` and `Xf_K` are the components of a copy after the change."""
    fall, slowest = 0.0, time_R[r] * (1.0 - 1e-9)
    for s in range(len(speed_R)):
        if not (placed_ER[e, s] or placed_ER[f, s]):
            continue
        copy_row(A_RK[s], spare_K)
        for k in range(len(spare_K)):
            if placed_ER[e, s]:
                spare_K[k] += Xe_K[k] - X_EK[e, k]
            if placed_ER[f, s]:
                spare_K[k] -= X_EK[f, k]
                spare_K[k] += Xe_K[k] if s == q else Xf_K[k]
        time = _time(spare_K, z, speed_R[s])
        if time >= slowest:
            return -1.0
        fall += max(time_R[s] - goal, 0.0) - max(time - goal, 0.0)
    return fall


@owning_part
def _best_recount(
    r, item_P, bin_P, first_R, copies_E, mean_E, variance_E, factor_FE, X_EK, A_RK, time_R, z, speed_R, placed_ER,
    allowed_ER, resident_ER, goal, best_worth,
):  # fmt: skip
    """The slot that best becomes one more copy of an item of bin `r`, where it is worth more than `best_worth`."""
    best_e, best_p = -1, -1
    K = X_EK.shape[1]
    Xe_K, Xf_K, spare_K = np.zeros(K), np.zeros(K), np.zeros(K)
    for a in range(first_R[r], first_R[r + 1]):
        e = item_P[a]
        _components(e, copies_E[e] + 1, mean_E, variance_E, factor_FE, Xe_K)
        for p in range(len(item_P)):
            f, q = item_P[p], bin_P[p]
            if copies_E[f] < 2 or f == e or placed_ER[e, q] or not allowed_ER[e, q]:
                continue
            _components(f, copies_E[f] - 1, mean_E, variance_E, factor_FE, Xf_K)
            fall = _lowered(e, f, q, r, Xe_K, Xf_K, X_EK, A_RK, time_R, z, speed_R, placed_ER, goal, spare_K)
            price = _price(e, -1, q, resident_ER) - (0 if resident_ER[f, q] else 1)
            worth = fall / (max(price, 0) + CHEAP)
            if worth > best_worth:
                best_e, best_p, best_worth = e, p, worth
    return best_e, best_p


@kept
@njit
def rebalance(
    item_P, bin_P, first_R, mean_E, variance_E, factor_FE, z, speed_R, allowed_ER, resident_ER, goal, steps, thrifty
):  # fmt: skip
    """`item_P` changed in place, the change worth most for each move first, until no bin is slower than `goal`.

    Returns the time of the slowest bin. `resident_ER` says which items a bin holds for nothing. Unless `thrifty`,
    copies are recounted only where no swap helps, which is faster.
    """
    E, R, K = len(mean_E), len(speed_R), 2 + len(factor_FE)
    copies_E, placed_ER = np.zeros(E, np.int64), np.zeros((E, R), np.bool_)
    for p in range(len(item_P)):
        copies_E[item_P[p]] += 1
        placed_ER[item_P[p], bin_P[p]] = True
    X_EK, A_RK, time_R = np.zeros((E, K)), np.zeros((R, K)), np.zeros(R)
    for e in range(E):
        _components(e, copies_E[e], mean_E, variance_E, factor_FE, X_EK[e])
    for _ in range(steps):
        _loads(item_P, bin_P, X_EK, A_RK)
        for s in range(R):
            time_R[s] = _time(A_RK[s], z, speed_R[s])
        r = np.argmax(time_R)
        if time_R[r] <= goal:
            break
        a, b, worth = _best_swap(
            r, item_P, first_R, X_EK, A_RK, time_R, z, speed_R, placed_ER, allowed_ER, resident_ER, goal
        )
        e, p = -1, -1
        if thrifty or a < 0:
            e, p = _best_recount(
                r, item_P, bin_P, first_R, copies_E, mean_E, variance_E, factor_FE, X_EK, A_RK, time_R, z, speed_R,
                placed_ER, allowed_ER, resident_ER, goal, worth,
            )  # fmt: skip
        if e >= 0:
            f, q = item_P[p], bin_P[p]
            copies_E[e] += 1
            copies_E[f] -= 1
            _components(e, copies_E[e], mean_E, variance_E, factor_FE, X_EK[e])
            _components(f, copies_E[f], mean_E, variance_E, factor_FE, X_EK[f])
            item_P[p] = e
            placed_ER[f, q], placed_ER[e, q] = False, True
        elif a >= 0:
            e, f, q = item_P[a], item_P[b], bin_P[b]
            item_P[a], item_P[b] = f, e
            placed_ER[e, r], placed_ER[e, q], placed_ER[f, q], placed_ER[f, r] = False, True, False, True
        else:
            break
    return np.max(time_R)
