"""Hypergraph partitioning with replication (numba): items drawn in sets, so that a set touches few groups of bins.

Shape suffixes: N drawn set, K item of a set, E item, G group of bins.
"""

import numpy as np
from numba import njit

from planner.solvers.compilation.kept import kept
from planner.solvers.compilation.parts import part


@kept
@njit
def pair_counts(items_NK, num_items):
    """[E, E] how many sets hold both items; 0 on the diagonal."""
    counts_EE = np.zeros((num_items, num_items))
    for n in range(len(items_NK)):
        for a in items_NK[n]:
            for b in items_NK[n]:
                if a != b:
                    counts_EE[a, b] += 1.0
    return counts_EE


@kept
@njit
def cluster(group_E, counts_EE, sweeps):
    """Swaps of items between groups, in place, while they put more pairs into one group; O(sweeps x E^2)."""
    E, G = len(group_E), group_E.max() + 1
    with_EG = np.zeros((E, G))
    for e in range(E):
        for f in range(E):
            with_EG[e, group_E[f]] += counts_EE[e, f]
    for _ in range(sweeps):
        changed = False
        for e in range(E):
            best, best_gain = -1, 1e-9
            g = group_E[e]
            for f in range(E):
                h = group_E[f]
                if h == g:
                    continue
                gain = with_EG[e, h] - with_EG[e, g] + with_EG[f, g] - with_EG[f, h] - 2.0 * counts_EE[e, f]
                if gain > best_gain:
                    best, best_gain = f, gain
            if best < 0:
                continue
            h = group_E[best]
            for k in range(E):
                with_EG[k, g] += counts_EE[k, best] - counts_EE[k, e]
                with_EG[k, h] += counts_EE[k, e] - counts_EE[k, best]
            group_E[e], group_E[best] = h, g
            changed = True
        if not changed:
            return


@kept
@njit
def savings(items_NK, group_E, num_groups):
    """[E, G] mean number of groups that a set needs less when `g` holds one more copy of `e`, that copy alone."""
    saved_EG = np.zeros((len(group_E), num_groups))
    count_G = np.zeros(num_groups, np.int64)
    for n in range(len(items_NK)):
        count_G[:] = 0
        for e in items_NK[n]:
            count_G[group_E[e]] += 1
        for e in items_NK[n]:
            if count_G[group_E[e]] == 1:
                for g in range(num_groups):
                    if g != group_E[e] and count_G[g] > 0:
                        saved_EG[e, g] += 1.0
    return saved_EG / len(items_NK)


@part
def _cost(e, g, weight_E, copies_E, resident_EG, load_G, speed_G, mean, saved_EG, price, calm):
    """Price of imbalance less groups saved when `g` gets one more copy of `e`, equal shares.

    `calm` is what a unit of weight less in one copy is worth: smaller copies make bins vary less from draw to draw.
    """
    gain = weight_E[e] / copies_E[e] - weight_E[e] / (copies_E[e] + 1)
    cost = -saved_EG[e, g] - calm * gain
    for h in range(len(load_G)):
        load = load_G[h]
        if resident_EG[e, h]:
            load -= gain
        if h == g:
            load += weight_E[e] / (copies_E[e] + 1)
        over = load / speed_G[h] / mean - 1.0
        if over > 0.0:
            cost += price * over * over
    return cost


@kept
@njit
def place_copies(weight_E, group_E, free_G, speed_G, saved_EG, price, calm, sweeps):
    """The item in every free slot of every group (group by group), each best given the others, until none changes.

    `price` is what a group's load above the mean, squared as a share, costs in groups saved for each set; `calm` as
    in `_cost`.
    """
    E, G = len(weight_E), len(free_G)
    copies_E, resident_EG, load_G = np.ones(E, np.int64), np.zeros((E, G), np.bool_), np.zeros(G)
    for e in range(E):
        resident_EG[e, group_E[e]] = True
        load_G[group_E[e]] += weight_E[e]
    mean = weight_E.sum() / speed_G.sum()
    group_F = np.repeat(np.arange(G), free_G)
    item_F = np.full(len(group_F), -1, np.int64)
    for _ in range(sweeps):
        changed = False
        for k in range(len(group_F)):
            g, old = group_F[k], item_F[k]
            if old >= 0:
                resident_EG[old, g] = False
                load_G[g] -= weight_E[old] / copies_E[old]
                more = weight_E[old] / (copies_E[old] - 1) - weight_E[old] / copies_E[old]
                for h in range(G):
                    if resident_EG[old, h]:
                        load_G[h] += more
                copies_E[old] -= 1
            best, best_cost = -1, np.inf
            for e in range(E):
                if not resident_EG[e, g]:
                    cost = _cost(e, g, weight_E, copies_E, resident_EG, load_G, speed_G, mean, saved_EG, price, calm)
                    if cost < best_cost:
                        best, best_cost = e, cost
            less = weight_E[best] / copies_E[best] - weight_E[best] / (copies_E[best] + 1)
            for h in range(G):
                if resident_EG[best, h]:
                    load_G[h] -= less
            copies_E[best] += 1
            resident_EG[best, g] = True
            load_G[g] += weight_E[best] / copies_E[best]
            item_F[k] = best
            changed = changed or best != old
        if not changed:
            break
    return item_F, copies_E
