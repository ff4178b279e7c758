"""Heads on ranks (numba): annealing of the fullest rank, and the least fullest rank of a few heads, depth first."""

import numpy as np
from numba import njit

from planner.solvers.compilation.kept import kept
from planner.solvers.compilation.parts import inlined_part
from planner.solvers.compiled.copies import copy_row


@kept
@njit
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
            copy_row(group_H, best_H)
    copy_row(best_H, group_H)
    return best


@inlined_part
def repeats(value_H, held_H, group_H, h, first):
    """Whether a head equals the one before it, which may be picked too and was passed over."""
    k = h - 1
    return k >= first and group_H[k] < 0 and value_H[k] == value_H[h] and held_H[k] == held_H[h]


@inlined_part
def first_left(group_H):
    """The largest head that has no rank yet."""
    h = 0
    while h < len(group_H) and group_H[h] >= 0:
        h += 1
    return h


@kept
@njit
def least_by_groups(value_H, held_H, most_held, groups, cutoff, most_nodes, best_H):
    """(fullest rank, nodes) of the best placement, below `cutoff`; heads in the order of the arrays, largest first.

    Rank after rank is filled: with the largest head that is left, and further ones in their order. A rank is closed
    only where what is left then fits below the best on the ranks that are left.
    """
    H = len(value_H)
    total = value_H.sum()
    group_H = np.full(H, -1, np.int64)
    picked_H, next_H = np.zeros(H + 1, np.int64), np.zeros(H + 1, np.int64)
    starts_H = np.zeros(H + 1, np.bool_)
    load_G, held_G = np.zeros(groups + 1), np.zeros(groups + 1)
    best, nodes, depth, group, placed = cutoff, 0, 0, -1, 0.0
    next_H[0] = H  # the head that is tried next; H: close the rank and start another; above: nothing is left to try
    while depth >= 0:
        h = next_H[depth]
        if h < H:
            next_H[depth] = h + 1
            if group_H[h] >= 0 or repeats(value_H, held_H, group_H, h, picked_H[depth - 1] + 1):
                continue
            if load_G[group] + value_H[h] >= best * (1.0 - 1e-12) or held_G[group] + held_H[h] > most_held:
                continue
            starts_H[depth] = False
        elif h == H:
            next_H[depth] = H + 1
            left = groups - group - 1
            if left == 0 or (group >= 0 and total - placed >= left * best * (1.0 - 1e-12)):
                continue
            h = first_left(group_H)
            if value_H[h] >= best * (1.0 - 1e-12) or held_H[h] > most_held:
                continue
            group += 1
            load_G[group], held_G[group] = 0.0, 0.0
            starts_H[depth] = True
        else:
            depth -= 1
            if depth >= 0:
                h = picked_H[depth]
                group_H[h] = -1
                load_G[group] -= value_H[h]
                held_G[group] -= held_H[h]
                placed -= value_H[h]
                if starts_H[depth]:
                    group -= 1
            continue
        nodes += 1
        if nodes > most_nodes:
            return best, nodes
        group_H[h] = group
        load_G[group] += value_H[h]
        held_G[group] += held_H[h]
        placed += value_H[h]
        picked_H[depth] = h
        depth += 1
        if depth == H:
            fullest = load_G[: group + 1].max()
            if fullest < best:
                best = fullest
                copy_row(group_H, best_H)
            next_H[depth] = H + 1
        else:
            next_H[depth] = h + 1
    return best, nodes
