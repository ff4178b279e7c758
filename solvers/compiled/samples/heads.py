"""Heads on ranks (numba): annealing of the fullest rank, and the least fullest rank of a few heads, depth first."""

import numpy as np
from numba import njit


@njit(cache=True)
def anneal_heads(value_H, held_H, most_held, group_H, groups, steps, seed):
    """Improves a placement in place by moves and exchanges; the fullest rank, infinite where no memory limit held."""
    np.random.seed(seed)
    H = len(value_H)
    load_G, held_G = np.zeros(groups), np.zeros(groups)
    for h in range(H):
        load_G[group_H[h]] += value_H[h]
        held_G[group_H[h]] += held_H[h]
    best = load_G.max() if held_G.max() <= most_held else np.inf
    best_H = group_H.copy()
    mean = value_H.sum() / groups
    energy = 0.0
    for g in range(groups):
        energy += (load_G[g] / mean) ** 2 + 100.0 * max(0.0, held_G[g] / most_held - 1.0)
    for step in range(steps):
        heat = 0.02 * (1e-6 ** (step / steps))
        h = np.random.randint(H)
        k = np.random.randint(H) if np.random.random() < 0.7 else -1
        a = group_H[h]
        b = group_H[k] if k >= 0 else np.random.randint(groups)
        if a == b:
            continue
        more = value_H[k] - value_H[h] if k >= 0 else -value_H[h]
        held = held_H[k] - held_H[h] if k >= 0 else -held_H[h]
        was = (load_G[a] / mean) ** 2 + (load_G[b] / mean) ** 2
        was += 100.0 * (max(0.0, held_G[a] / most_held - 1.0) + max(0.0, held_G[b] / most_held - 1.0))
        now = ((load_G[a] + more) / mean) ** 2 + ((load_G[b] - more) / mean) ** 2
        now += 100.0 * (max(0.0, (held_G[a] + held) / most_held - 1.0) + max(0.0, (held_G[b] - held) / most_held - 1.0))
        if now > was and np.random.random() >= np.exp((was - now) / heat):
            continue
        energy += now - was
        group_H[h] = b
        if k >= 0:
            group_H[k] = a
        load_G[a] += more
        load_G[b] -= more
        held_G[a] += held
        held_G[b] -= held
        fullest = load_G.max()
        if fullest < best - 1e-12 * best and held_G.max() <= most_held:
            best = fullest
            best_H[:] = group_H
    group_H[:] = best_H
    return best


@njit(cache=True)
def least_fullest(value_H, held_H, most_held, groups, cutoff, most_nodes, best_H):
    """(fullest rank, nodes) of the best placement, below `cutoff`; heads in the order of the arrays, largest first.

    Depth first; what is left must find room below the best under all ranks; of equal ranks the first.
    """
    H = len(value_H)
    rest_H = np.zeros(H + 1)
    for h in range(H - 1, -1, -1):
        rest_H[h] = rest_H[h + 1] + value_H[h]
    load_G, held_G = np.zeros(groups), np.zeros(groups)
    at_H = np.full(H, -1, np.int64)
    best, nodes, h = cutoff, 0, 0
    while h >= 0:
        g = at_H[h]
        if g >= 0:
            load_G[g] -= value_H[h]
            held_G[g] -= held_H[h]
        g += 1
        placed = False
        while g < groups:
            fits = load_G[g] + value_H[h] < best * (1.0 - 1e-12) and held_G[g] + held_H[h] <= most_held
            for other in range(g):
                if (
                    abs(load_G[other] - load_G[g]) <= 1e-15 * best
                    and abs(held_G[other] - held_G[g]) <= 1e-12 * most_held
                ):
                    fits = False
            if fits:
                placed = True
                break
            g += 1
        if not placed:
            at_H[h] = -1
            h -= 1
            continue
        nodes += 1
        if nodes > most_nodes:
            return best, nodes
        at_H[h] = g
        load_G[g] += value_H[h]
        held_G[g] += held_H[h]
        if h == H - 1:
            best = load_G.max()
            best_H[:] = at_H
            continue
        room = 0.0
        for k in range(groups):
            room += best - load_G[k]
        if room <= rest_H[h + 1]:
            continue
        h += 1
        at_H[h] = -1
    return best, nodes
