"""Generalised assignment by local search (numba): copies moved so that more weight stays in its own group.

Weight comes from all bins alike, and copies share equally. Shape suffixes: E item, G group, R bin, P slot.
"""

import numpy as np
from numba import njit

from planner.solvers.compilation.kept import kept
from planner.solvers.compilation.parts import part


@part
def _near(count_EG, e, copies, source_G):
    """Share of the weight of `e` that finds a copy in its own group."""
    near = 0.0
    for g in range(len(source_G)):
        near += min(count_EG[e, g] / copies, source_G[g])
    return near


@part
def _swap_gain(e, f, g, h, weight_E, copies_E, count_EG, source_G):
    """Weight carried nearby when a copy of `e` goes from group `g` to `h` and one of `f` the other way, less before."""
    before = weight_E[e] * _near(count_EG, e, copies_E[e], source_G)
    before += weight_E[f] * _near(count_EG, f, copies_E[f], source_G)
    count_EG[e, g] -= 1
    count_EG[e, h] += 1
    count_EG[f, h] -= 1
    count_EG[f, g] += 1
    after = weight_E[e] * _near(count_EG, e, copies_E[e], source_G)
    after += weight_E[f] * _near(count_EG, f, copies_E[f], source_G)
    count_EG[e, g] += 1
    count_EG[e, h] -= 1
    count_EG[f, h] += 1
    count_EG[f, g] -= 1
    return after - before


@part
def _recount_gain(e, f, g, weight_E, copies_E, count_EG, source_G):
    """The same when a slot in group `g` changes from `e`, which has copies to spare, to `f`."""
    before = weight_E[e] * _near(count_EG, e, copies_E[e], source_G)
    before += weight_E[f] * _near(count_EG, f, copies_E[f], source_G)
    count_EG[e, g] -= 1
    count_EG[f, g] += 1
    after = weight_E[e] * _near(count_EG, e, copies_E[e] - 1, source_G)
    after += weight_E[f] * _near(count_EG, f, copies_E[f] + 1, source_G)
    count_EG[e, g] += 1
    count_EG[f, g] -= 1
    return after - before


@part
def _recount_fits(e, f, r, weight_E, copies_E, placed_ER, load_R, speed_R, goal):
    """Whether all bins stay within `goal` when bin `r` gives up its copy of `e` for one more of `f`."""
    more_e = weight_E[e] / (copies_E[e] - 1) - weight_E[e] / copies_E[e]
    less_f = weight_E[f] / copies_E[f] - weight_E[f] / (copies_E[f] + 1)
    for q in range(len(load_R)):
        load = load_R[q]
        if q == r:
            load += weight_E[f] / (copies_E[f] + 1) - weight_E[e] / copies_E[e]
        else:
            if placed_ER[e, q]:
                load += more_e
            if placed_ER[f, q]:
                load -= less_f
        if load > goal * speed_R[q]:
            return False
    return True


@kept
@njit
def _apply_recount(e, f, r, weight_E, copies_E, placed_ER, load_R):
    for q in range(len(load_R)):
        if placed_ER[e, q]:
            load_R[q] += weight_E[e] / (copies_E[e] - 1) - weight_E[e] / copies_E[e]
        if placed_ER[f, q]:
            load_R[q] -= weight_E[f] / copies_E[f] - weight_E[f] / (copies_E[f] + 1)
    load_R[r] += weight_E[f] / (copies_E[f] + 1) - weight_E[e] / (copies_E[e] - 1)
    placed_ER[e, r], placed_ER[f, r] = False, True
    copies_E[e] -= 1
    copies_E[f] += 1


@part
def _best_swap(a, item_P, bin_P, group_R, weight_E, copies_E, placed_ER, count_EG, load_R, speed_R, source_G, goal):
    """(slot to exchange items with, weight then carried nearby)."""
    e, r, best, most = item_P[a], bin_P[a], -1, 1e-9 * weight_E.sum()
    for b in range(len(item_P)):
        f, q = item_P[b], bin_P[b]
        if group_R[q] == group_R[r] or placed_ER[e, q] or placed_ER[f, r]:
            continue
        each_e, each_f = weight_E[e] / copies_E[e], weight_E[f] / copies_E[f]
        if load_R[r] - each_e + each_f > goal * speed_R[r] or load_R[q] - each_f + each_e > goal * speed_R[q]:
            continue
        gain = _swap_gain(e, f, group_R[r], group_R[q], weight_E, copies_E, count_EG, source_G)
        if gain > most:
            best, most = b, gain
    return best, most


@part
def _best_recount(a, item_P, bin_P, group_R, weight_E, copies_E, placed_ER, count_EG, load_R, speed_R, source_G, goal):
    """(item that takes the slot, weight then carried nearby)."""
    e, r, best, most = item_P[a], bin_P[a], -1, 1e-9 * weight_E.sum()
    for f in range(len(weight_E)):
        if placed_ER[f, r]:
            continue
        gain = _recount_gain(e, f, group_R[r], weight_E, copies_E, count_EG, source_G)
        if gain > most and _recount_fits(e, f, r, weight_E, copies_E, placed_ER, load_R, speed_R, goal):
            best, most = f, gain
    return best, most


@kept
@njit
def draw_near(item_P, bin_P, group_R, weight_E, speed_R, source_G, goal, sweeps):
    """`item_P` changed in place while more weight can be carried nearby with every bin within `goal`."""
    E, R = len(weight_E), len(speed_R)
    copies_E, placed_ER = np.zeros(E, np.int64), np.zeros((E, R), np.bool_)
    count_EG, load_R = np.zeros((E, len(source_G)), np.int64), np.zeros(R)
    for p in range(len(item_P)):
        e, r = item_P[p], bin_P[p]
        copies_E[e] += 1
        placed_ER[e, r] = True
        count_EG[e, group_R[r]] += 1
    for p in range(len(item_P)):
        load_R[bin_P[p]] += weight_E[item_P[p]] / copies_E[item_P[p]]
    for _ in range(sweeps):
        changed = False
        for a in range(len(item_P)):
            e, r = item_P[a], bin_P[a]
            if copies_E[e] < 2:
                continue
            b, gain = _best_swap(
                a, item_P, bin_P, group_R, weight_E, copies_E, placed_ER, count_EG, load_R, speed_R, source_G, goal
            )
            f, more = _best_recount(
                a, item_P, bin_P, group_R, weight_E, copies_E, placed_ER, count_EG, load_R, speed_R, source_G, goal
            )
            if f >= 0 and (b < 0 or more > gain):
                count_EG[e, group_R[r]] -= 1
                count_EG[f, group_R[r]] += 1
                _apply_recount(e, f, r, weight_E, copies_E, placed_ER, load_R)
                item_P[a] = f
            elif b >= 0:
                f, q = item_P[b], bin_P[b]
                load_R[r] += weight_E[f] / copies_E[f] - weight_E[e] / copies_E[e]
                load_R[q] += weight_E[e] / copies_E[e] - weight_E[f] / copies_E[f]
                placed_ER[e, r], placed_ER[e, q], placed_ER[f, q], placed_ER[f, r] = False, True, False, True
                count_EG[e, group_R[r]] -= 1
                count_EG[e, group_R[q]] += 1
                count_EG[f, group_R[q]] -= 1
                count_EG[f, group_R[r]] += 1
                item_P[a], item_P[b] = f, e
            changed = changed or f >= 0 or b >= 0
        if not changed:
            return
