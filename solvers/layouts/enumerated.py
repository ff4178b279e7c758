"""Item splitting over few bins by listing every layout: the same problem as `planner.solvers.layouts.spread`.

A layout gives each item a set of bins, not empty; with R bins and E items there are (2^R - 1)^E of them. Local search
moves a copy or two at a time, and where there are so few layouts it often ends a percent above the best.
With free shares the slowest bin takes as long as some bins together take for the items that are on these alone, at the
most (Hall's condition).
Shape suffixes: E item, R bin, K layout, M set of bins, B bins or, with free shares, sets of them.
"""

import math

import numpy as np

from planner.solvers.layouts.shares import pour
from planner.solvers.layouts.spread import Spread, SpreadProblem, bin_times, equal_shares

MOST_LAYOUTS = 3**10  # 20 ms; ten items on two bins, five on three


def is_small(problem: SpreadProblem) -> bool:
    """Whether the layouts are few enough to be listed."""
    sets = 2.0 ** len(problem.slots_R) - 1.0
    return sets > 1.0 and len(problem.weight_E) * math.log(sets) <= math.log(MOST_LAYOUTS) + 1e-9


def best_of_all(problem: SpreadProblem, *, free: bool = False) -> Spread | None:
    """The layout with the fastest slowest bin, copies sharing equally or freely; None where none fills every slot."""
    bins, items = len(problem.slots_R), len(problem.weight_E)
    held_MR = (np.arange(1, 2**bins)[:, None] >> np.arange(bins)) & 1
    share_MB, speed_B = held_MR / held_MR.sum(axis=1, keepdims=True), problem.speed_R
    if free:  # an item counts for a set of bins where it is on no other
        share_MB = (held_MR[:, None] <= held_MR[None]).all(axis=2).astype(np.float64)
        speed_B = held_MR @ problem.speed_R
    slots_KR, load_KB = np.zeros((1, bins), np.int64), np.zeros((1, len(speed_B)))
    sets_KE = np.zeros((1, 0), np.int64)
    for item, weight in enumerate(problem.weight_E.tolist()):
        able_M = np.flatnonzero((held_MR <= problem.allowed[item]).all(axis=1))
        left = items - item - 1
        slots_KR = (slots_KR[:, None] + held_MR[able_M]).reshape(-1, bins)
        load_KB = (load_KB[:, None] + weight * share_MB[able_M]).reshape(-1, len(speed_B))
        sets_KE = np.hstack([np.repeat(sets_KE, len(able_M), axis=0), np.tile(able_M, len(sets_KE))[:, None]])
        kept_K = ((slots_KR <= problem.slots_R) & (slots_KR + left >= problem.slots_R)).all(axis=1)
        slots_KR, load_KB, sets_KE = slots_KR[kept_K], load_KB[kept_K], sets_KE[kept_K]
    if not len(load_KB):
        return None
    best = int(np.argmin((load_KB / speed_B).max(axis=1)))
    item_P = np.concatenate([np.flatnonzero(held_MR[sets_KE[best], bin_]) for bin_ in range(bins)])
    return Spread(item_P, pour(problem, item_P) if free else equal_shares(item_P, items))


def better(problem: SpreadProblem, spread: Spread | None, *, free: bool = False) -> Spread | None:
    """The layout given, or the best of all where that is faster or none is given."""
    best = best_of_all(problem, free=free)
    if best is None or (spread is not None and _slowest_s(problem, best) >= _slowest_s(problem, spread)):
        return spread
    return best


def _slowest_s(problem: SpreadProblem, spread: Spread) -> float:
    return float(bin_times(problem, spread.item_P, spread.share_P).max())
