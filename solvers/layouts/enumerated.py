"""Item splitting over few bins by listing every layout: the same problem as `planner.solvers.layouts.spread`.

A layout gives each item a set of bins, not empty; with R bins and E items there are (2^R - 1)^E of them. Local search
moves a copy or two at a time, and where there are so few layouts it often ends a percent above the best.
Shape suffixes: E item, R bin, K layout, M set of bins.
"""

import math

import numpy as np

from planner.arrays import Floats
from planner.solvers.layouts.spread import Spread, SpreadProblem, bin_times, equal_shares

MOST_LAYOUTS = 3**10  # 20 ms; ten items on two bins, five on three


def is_small(problem: SpreadProblem) -> bool:
    """Whether the layouts are few enough to be listed."""
    sets = 2.0 ** len(problem.slots_R) - 1.0
    return sets > 1.0 and len(problem.weight_E) * math.log(sets) <= math.log(MOST_LAYOUTS) + 1e-9


def best_of_all(problem: SpreadProblem) -> Spread | None:
    """The layout with the fastest slowest bin, copies sharing equally; None where no layout fills every slot."""
    bins, items = len(problem.slots_R), len(problem.weight_E)
    held_MR = (np.arange(1, 2**bins)[:, None] >> np.arange(bins)) & 1
    share_MR = held_MR / held_MR.sum(axis=1, keepdims=True)
    slots_KR, load_KR = np.zeros((1, bins), np.int64), np.zeros((1, bins))
    sets_KE = np.zeros((1, 0), np.int64)
    for item, weight in enumerate(problem.weight_E.tolist()):
        able_M = np.flatnonzero((held_MR <= problem.allowed[item]).all(axis=1))
        left = items - item - 1
        slots_KR = (slots_KR[:, None] + held_MR[able_M]).reshape(-1, bins)
        load_KR = (load_KR[:, None] + weight * share_MR[able_M]).reshape(-1, bins)
        sets_KE = np.hstack([np.repeat(sets_KE, len(able_M), axis=0), np.tile(able_M, len(sets_KE))[:, None]])
        kept_K = ((slots_KR <= problem.slots_R) & (slots_KR + left >= problem.slots_R)).all(axis=1)
        slots_KR, load_KR, sets_KE = slots_KR[kept_K], load_KR[kept_K], sets_KE[kept_K]
    if not len(load_KR):
        return None
    best = int(np.argmin(_slowest(problem, load_KR)))
    item_P = np.concatenate([np.flatnonzero(held_MR[sets_KE[best], bin_]) for bin_ in range(bins)])
    return Spread(item_P, equal_shares(item_P, items))


def better(problem: SpreadProblem, spread: Spread) -> Spread:
    """The layout given, or the best of all where that is faster."""
    best = best_of_all(problem)
    if best is None or float(bin_times(problem, best.item_P).max()) >= float(bin_times(problem, spread.item_P).max()):
        return spread
    return best


def _slowest(problem: SpreadProblem, load_KR: Floats) -> Floats:
    slowest: Floats = (load_KR / problem.speed_R).max(axis=1)
    return slowest
