"""Partitions of few items into sets: against trying every selection."""

import itertools
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.solvers.set_partition import best_bottleneck, cheapest_partition

ITEMS = 4
SETS = st.lists(
    st.tuples(st.frozensets(st.integers(0, ITEMS - 1), min_size=1), st.integers(0, 5), st.integers(0, 5)), max_size=8
)


def partitions(rows: list[tuple[frozenset[int], int, int]]) -> list[tuple[int, ...]]:
    """Every selection of sets that holds each item once."""
    result = []
    for size in range(1, ITEMS + 1):
        for chosen in itertools.combinations(range(len(rows)), size):
            if sorted(item for row in chosen for item in rows[row][0]) == list(range(ITEMS)):
                result.append(chosen)
    return result


@settings(max_examples=120, deadline=None)
@given(SETS)
def test_the_cheapest_partition_is_the_cheapest_of_all(rows: list[tuple[frozenset[int], int, int]]) -> None:
    every = partitions(rows)
    chosen = cheapest_partition([row[0] for row in rows], [row[1] for row in rows], ITEMS)
    if chosen is None:
        assert not every
        return
    assert tuple(sorted(chosen)) in every
    assert sum(rows[row][1] for row in chosen) == min(sum(rows[row][1] for row in partition) for partition in every)


@settings(max_examples=120, deadline=None)
@given(SETS, st.integers(0, 12))
def test_the_best_bottleneck_is_the_best_of_all_within_the_budget(
    rows: list[tuple[frozenset[int], int, int]], budget: int
) -> None:
    every = [partition for partition in partitions(rows) if sum(rows[row][1] for row in partition) <= budget]
    sets, costs, values = ([row[field] for row in rows] for field in range(3))
    chosen = best_bottleneck(sets, costs, values, ITEMS, budget)  # type: ignore[arg-type]  # columns of mixed rows
    if chosen is None:
        assert not every
        return
    assert tuple(sorted(chosen)) in every
    assert min(rows[row][2] for row in chosen) == max(min(rows[row][2] for row in partition) for partition in every)


def test_ties_go_to_the_preferred_set() -> None:
    sets = [frozenset({0}), frozenset({0})]
    assert cheapest_partition(sets, [1.0, 1.0], 1, ties=[0.0, 2.0]) == (1,)
    assert cheapest_partition(sets, [1.0, 1.0], 1, ties=[2.0, 0.0]) == (0,)
    assert best_bottleneck(sets, [1.0, 1.0], [3.0, 3.0], 1, math.inf, ties=[0.0, 2.0]) == (1,)
