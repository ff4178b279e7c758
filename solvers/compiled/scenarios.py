"""Robust balanced grouping (numba): items in groups of fixed size under many weight vectors, by swaps.

Shape suffixes: M scenario, E item, G group.
"""

import numpy as np
from numba import njit

from planner.solvers.compilation.kept import kept
from planner.solvers.compilation.parts import part


@part
def _gain(e, f, g, h, weight_EM, load_GM):
    """How much the sum of squared loads falls when `e` of group `g` and `f` of group `h` change places."""
    gain = 0.0
    for m in range(weight_EM.shape[1]):
        shift = weight_EM[e, m] - weight_EM[f, m]
        gain += shift * (load_GM[g, m] - load_GM[h, m] - shift)
    return 2.0 * gain


@kept
@njit
def balance(weight_ME, group_E, num_groups, least_gain, most_swaps):
    """Swaps of items between groups, in place: while each lowers the sum over scenarios and groups of the squared load
    by `least_gain` or more, and for at most `most_swaps`. Weights of a scenario are scaled to a mean load of 1.

    Each item is swapped with its best partner in turn; O(sweeps x E^2 x M). Returns the number of swaps.
    """
    M, E = weight_ME.shape
    weight_EM = np.empty((E, M))
    load_GM = np.zeros((num_groups, M))
    for m in range(M):
        mean = weight_ME[m].sum() / num_groups
        for e in range(E):
            weight_EM[e, m] = weight_ME[m, e] / mean
            load_GM[group_E[e], m] += weight_EM[e, m]
    swaps = 0
    changed = True
    while changed and swaps < most_swaps:
        changed = False
        for e in range(E):
            g = group_E[e]
            best, best_gain = -1, least_gain
            for f in range(E):
                if group_E[f] != g:
                    gain = _gain(e, f, g, group_E[f], weight_EM, load_GM)
                    if gain > best_gain:
                        best, best_gain = f, gain
            if best < 0:
                continue
            h = group_E[best]
            for m in range(M):
                shift = weight_EM[e, m] - weight_EM[best, m]
                load_GM[g, m] -= shift
                load_GM[h, m] += shift
            group_E[e], group_E[best] = h, g
            swaps += 1
            changed = True
            if swaps >= most_swaps:
                break
    return swaps
