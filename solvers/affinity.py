"""Items drawn in sets, laid out on groups of bins so that a set touches few groups and the bins stay balanced.

Every item has a home group, where items drawn together meet; free slots hold further copies, which even out the groups
and spare sets a group. Within a group, copies are packed onto its bins. Copies share their item's weight equally.
Shape suffixes: N drawn set, K item of a set, E item, G group, R bin, P slot (bin-major), F free slot.
"""

from dataclasses import dataclass

import numpy as np

from planner.errors import PlannerError
from planner.solvers.spread import Ints, SpreadProblem, solve_spread

PRICE = 300.0
"""What imbalance costs: a group 1 % above the mean weighs as much as 0.03 groups for each set."""
SWEEPS = 30


@dataclass(frozen=True, slots=True, eq=False)
class AffinityProblem:
    """Sets of items drawn, the slots of each bin and its group; `price` as in `PRICE`."""

    items_NK: Ints
    num_items: int
    slots_R: Ints
    group_R: Ints
    price: float = PRICE

    def __post_init__(self) -> None:
        if self.items_NK.ndim != 2 or self.items_NK.size == 0:
            raise PlannerError(f"must have the axes [set, item], found the shape {self.items_NK.shape}", where="sets")
        low, high = int(self.items_NK.min()), int(self.items_NK.max())
        if low < 0 or high >= self.num_items:
            what = f"names item {low if low < 0 else high} of {self.num_items}"
            raise PlannerError(what, where="sets", hint="items count from 0")
        if int(self.slots_R.sum()) < self.num_items:
            what = f"{int(self.slots_R.sum())} slots cannot hold {self.num_items} items"
            raise PlannerError(what, where="slots", hint="add slots or bins")
        if len(self.slots_G) > 1 and int(self.slots_G.max()) > self.num_items:
            what = f"a group has {int(self.slots_G.max())} slots for {self.num_items} items, and holds none twice"
            raise PlannerError(what, where="slots", hint="give each group at most as many slots as there are items")

    @property
    def slots_G(self) -> Ints:
        counts: Ints = np.bincount(self.group_R, weights=self.slots_R).astype(np.int64)
        return counts


def home_groups(problem: AffinityProblem) -> Ints:
    """[E] the home of each item: groups filled in order, or clusters of items drawn together where sets then touch
    fewer groups.

    Clusters come of swaps that raise modularity (Newman, PNAS 103, 2006): pairs count by how much more often they are
    drawn together than their frequencies alone make them, so that frequent items do not all meet in one group.
    """
    from planner.solvers.compiled.affinity import cluster, pair_counts

    slots_G = problem.slots_G
    ideal = np.cumsum(slots_G) * (problem.num_items / slots_G.sum())
    last = np.minimum(np.round(ideal).astype(np.int64), np.cumsum(slots_G))
    in_order_E = np.searchsorted(last, np.arange(problem.num_items), side="right").astype(np.int64)
    if len(slots_G) == 1:
        return in_order_E
    clustered_E = in_order_E.copy()
    counts_EE = pair_counts(problem.items_NK, problem.num_items)
    drawn_E = counts_EE.sum(axis=1)
    cluster(clustered_E, counts_EE - np.outer(drawn_E, drawn_E) / drawn_E.sum(), SWEEPS)
    return min((in_order_E, clustered_E), key=lambda group_E: _homes_touched(problem, group_E))


def _homes_touched(problem: AffinityProblem, group_E: Ints) -> int:
    """Groups touched by all sets together when each item is at home alone."""
    groups = np.sort(group_E[problem.items_NK], axis=1)
    return int((groups[:, 1:] != groups[:, :-1]).sum())


def solve_affinity(problem: AffinityProblem) -> Ints:
    """[P] the item in every slot."""
    from planner.solvers.compiled.affinity import place_copies, savings

    items, slots_G = problem.num_items, problem.slots_G
    weight_E = np.bincount(problem.items_NK.ravel(), minlength=items).astype(np.float64)
    if len(slots_G) == 1:
        return _pack(weight_E, problem.slots_R)
    group_E = home_groups(problem)
    free_G = slots_G - np.bincount(group_E, minlength=len(slots_G))
    saved_EG = savings(problem.items_NK, group_E, len(slots_G))
    speed_G = np.bincount(problem.group_R).astype(np.float64)
    item_F, copies_E = place_copies(weight_E, group_E, free_G, speed_G, saved_EG, problem.price, SWEEPS)
    group_F = np.repeat(np.arange(len(slots_G)), free_G)
    first_R = np.concatenate([np.zeros(1, np.int64), np.cumsum(problem.slots_R)])
    item_P = np.empty(int(slots_G.sum()), np.int64)
    for group in range(len(slots_G)):
        held = np.concatenate([np.nonzero(group_E == group)[0], item_F[group_F == group]])
        bins = np.nonzero(problem.group_R == group)[0]
        at = np.concatenate([np.arange(first_R[r], first_R[r + 1]) for r in bins])
        item_P[at] = held[_pack((weight_E / copies_E)[held], problem.slots_R[bins])]
    return item_P


def _pack(weight_H: "np.typing.NDArray[np.float64]", slots_R: Ints) -> Ints:
    """Which of the weights goes into which slot, each at least once."""
    weights = weight_H if weight_H.any() else np.ones(len(weight_H))
    packed = solve_spread(SpreadProblem(weights, slots_R, np.ones(len(slots_R)))).solution
    assert packed is not None
    return packed.item_P


def groups_touched(items_NK: Ints, item_P: Ints, slots_R: Ints, group_R: Ints, num_items: int) -> float:
    """Mean number of groups that a set needs, covering it greedily by the group that holds most of what is missing."""
    groups = int(group_R.max()) + 1
    held_EG = np.zeros((num_items, groups), np.bool_)
    held_EG[item_P, np.repeat(group_R, slots_R)] = True
    missing_NK = np.ones(items_NK.shape, np.bool_)
    needed_N = np.zeros(len(items_NK))
    for _ in range(groups):
        held_NKG = held_EG[items_NK] & missing_NK[:, :, None]
        count_NG = held_NKG.sum(axis=1)
        best_N = count_NG.argmax(axis=1)
        needed_N += count_NG.max(axis=1) > 0
        missing_NK &= ~held_NKG[np.arange(len(items_NK)), :, best_N]
    return float(needed_N.mean())
