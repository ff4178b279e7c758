"""Set partitioning: sets that hold every item once, at the least cost, or with the best worst value under a budget.

Problem     set partitioning of few items: chosen sets are disjoint and hold all items
Sets        b in B items;  s in S sets, each a part of B with a cost c_s >= 0 and a value v_s
Variables   x_s in {0, 1} set s is chosen
Minimise    sum_s c_s x_s  (`cheapest_partition`);  or maximise t  (`best_bottleneck`), where
(C1)        sum_{s: b in s} x_s = 1     for b in B     every item once
(C2)        sum_s c_s x_s <= C                         the budget
(C3)        v_s >= t                    for x_s = 1    no chosen set is worth less than t
Method      of equal sets only the cheapest matters; then cost(D) = min over sets s in D with the first item of D of
            c_s + cost(D - s), O(3^B) at worst (Held and Karp, Journal of SIAM 10, 1962). The bottleneck is the highest
            value at which the sets that are left have a partition within the budget: bisection over the values.
"""

import math
from collections.abc import Sequence

MOST_ITEMS = 12


def cheapest_partition(
    sets: Sequence[frozenset[int]], costs: Sequence[float], items: int, *, ties: Sequence[float] | None = None
) -> tuple[int, ...] | None:
    """The sets of a partition of items 0 .. `items` - 1 of the least cost, by their places; None where there is none.

    Of equal sets of equal cost the one of the highest tie is taken.
    """
    assert items <= MOST_ITEMS, "the table has 2^items entries"
    best: dict[int, int] = {}
    for index, items_of_set in enumerate(sets):
        mask = sum(1 << item for item in items_of_set)
        if mask and (mask not in best or _before(index, best[mask], costs, ties)):
            best[mask] = index
    least, taken = {0: 0.0}, dict[int, int]()
    for covered in range(1, 1 << items):
        first = covered & -covered
        ways = [
            (costs[index] + least[covered ^ mask], mask)
            for mask, index in best.items()
            if mask & first and mask & covered == mask
        ]
        least[covered], taken[covered] = min(ways, default=(math.inf, 0))
    if math.isinf(least[(1 << items) - 1]):
        return None
    chosen, left = [], (1 << items) - 1
    while left:
        chosen.append(best[taken[left]])
        left ^= taken[left]
    return tuple(chosen)


def best_bottleneck(
    sets: Sequence[frozenset[int]],
    costs: Sequence[float],
    values: Sequence[float],
    items: int,
    budget: float,
    *,
    ties: Sequence[float] | None = None,
) -> tuple[int, ...] | None:
    """The sets of a partition within the budget whose lowest value is the highest; None where there is no partition."""
    levels = sorted(set(values))
    best: tuple[int, ...] | None = None
    low, high = 0, len(levels)
    while low < high:
        middle = (low + high) // 2
        kept = [index for index, value in enumerate(values) if value >= levels[middle]]
        chosen = cheapest_partition(
            [sets[index] for index in kept],
            [costs[index] for index in kept],
            items,
            ties=None if ties is None else [ties[index] for index in kept],
        )
        if chosen is not None and sum(costs[kept[index]] for index in chosen) <= budget:
            best, low = tuple(kept[index] for index in chosen), middle + 1
        else:
            high = middle
    return best


def _before(index: int, other: int, costs: Sequence[float], ties: Sequence[float] | None) -> bool:
    if costs[index] != costs[other] or ties is None:
        return costs[index] < costs[other]
    return ties[index] > ties[other]
