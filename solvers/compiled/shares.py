"""Divisible loads on given places (numba): water-filling of every item over its bins, until nothing moves."""

import numpy as np
from numba import njit

from planner.solvers.compilation.kept import kept
from planner.solvers.compilation.parts import owning_part


@owning_part
def _pour(weight, hosts, count, load_R, speed_R, carried):
    """`weight` over the first `count` bins of `hosts` so that the loaded ones end together; fills `carried`."""
    active = np.ones(count, np.bool_)
    while True:
        speed, level = 0.0, weight
        for h in range(count):
            if active[h]:
                speed += speed_R[hosts[h]]
                level += load_R[hosts[h]]
        level /= speed
        changed = False
        for h in range(count):
            if active[h] and load_R[hosts[h]] >= level * speed_R[hosts[h]]:
                active[h] = False
                changed = True
        if not changed:
            break
    for h in range(count):
        carried[h] = level * speed_R[hosts[h]] - load_R[hosts[h]] if active[h] else 0.0


@kept
@njit
def pour_shares(item_P, bin_P, weight_E, speed_R, share_P, goal, sweeps):
    """`share_P` changed in place towards the least slowest bin for this placement; returns its time.

    Each step pours one item exactly, given the others: coordinate descent on sum_r load_r^2 / speed_r, whose minimum
    over the shares also has the fastest slowest bin (the least majorised loads of a fractional assignment). Stops at
    `goal`, when a sweep changes no load by 1e-9 of the mean, or after `sweeps`. Slots of -1 are empty.
    """
    E, R = len(weight_E), len(speed_R)
    count_E, load_R = np.zeros(E, np.int64), np.zeros(R)
    for p in range(len(item_P)):
        if item_P[p] >= 0:
            count_E[item_P[p]] += 1
            load_R[bin_P[p]] += weight_E[item_P[p]] * share_P[p]
    first_E = np.zeros(E + 1, np.int64)
    for e in range(E):
        first_E[e + 1] = first_E[e] + count_E[e]
    slot_of = np.zeros(first_E[E], np.int64)
    seen_E = np.zeros(E, np.int64)
    for p in range(len(item_P)):
        e = item_P[p]
        if e >= 0:
            slot_of[first_E[e] + seen_E[e]] = p
            seen_E[e] += 1
    hosts, carried = np.zeros(R, np.int64), np.zeros(R)
    tiny = 1e-9 * load_R.sum() / R
    for _ in range(sweeps):
        if np.max(load_R / speed_R) <= goal:
            break
        largest = 0.0
        for e in range(E):
            count = count_E[e]
            if count < 2 or weight_E[e] <= 0.0:
                continue
            for h in range(count):
                p = slot_of[first_E[e] + h]
                hosts[h] = bin_P[p]
                load_R[bin_P[p]] -= weight_E[e] * share_P[p]
            _pour(weight_E[e], hosts, count, load_R, speed_R, carried)
            for h in range(count):
                p = slot_of[first_E[e] + h]
                largest = max(largest, abs(carried[h] - weight_E[e] * share_P[p]))
                share_P[p] = carried[h] / weight_E[e]
                load_R[hosts[h]] += carried[h]
        if largest <= tiny:
            break
    return np.max(load_R / speed_R)
