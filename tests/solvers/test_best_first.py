"""Best-first branch and bound: the least value of all leaves, what stays unopened, and what a stopped search proves."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.solvers.best_first import BestFirst, search_all

Tree = list[list[tuple[float, float]]]  # by node the (bound, value) of each leaf


class _Search(BestFirst[tuple[float, float]]):
    """Leaves of a tree, each bounded twice: by its own bound, then by its value less a half."""

    def __init__(self, tree: Tree, value: float = float("inf"), margin: float = 0.0) -> None:
        super().__init__(value, margin)
        self.tree = tree
        self.nodes_opened: list[int] = []
        self.evaluated: list[float] = []
        self.left = 0
        self.again: set[tuple[float, float]] = set()
        self.set_nodes(np.array([min((bound for bound, _ in leaves), default=np.inf) for leaves in tree]))

    def open(self, node: int) -> None:
        self.nodes_opened.append(node)
        for leaf in self.tree[node]:
            self.push(leaf[0], leaf)

    def close(self, leaf: tuple[float, float]) -> None:
        if leaf not in self.again and leaf[1] - 0.5 > leaf[0]:
            self.again.add(leaf)
            self.push(leaf[1] - 0.5, leaf)
            return
        self.evaluated.append(leaf[1])
        self.value = min(self.value, leaf[1])

    def leave(self, leaf: tuple[float, float], bound: float) -> None:
        self.left += 1


LEAVES = st.tuples(st.integers(0, 8), st.integers(0, 4)).map(lambda pair: (float(pair[0]), float(sum(pair))))
TREES = st.lists(st.lists(LEAVES, max_size=4), max_size=5)


@settings(max_examples=60, deadline=None)
@given(st.lists(TREES, min_size=1, max_size=3), st.sampled_from([0.0, 0.25]), st.sampled_from([0, 1, 3]))
def test_the_least_value_of_all_searches_is_found_within_the_gap(trees: list[Tree], gap: float, dives: int) -> None:
    searches = [_Search(tree) for tree in trees]
    assert search_all(searches, gap, float("inf"), dives) == "finished"
    least = min((value for tree in trees for leaves in tree for _, value in leaves), default=float("inf"))
    bound = min(search.bound for search in searches)
    assert {search.value for search in searches} == {searches[0].value}
    assert bound <= least <= searches[0].value
    assert searches[0].value * (1.0 - gap) <= bound
    if gap == 0.0:
        assert searches[0].value == least


def test_nothing_is_opened_or_closed_whose_bound_is_no_less_than_the_best_value() -> None:
    search = _Search([[(1.0, 3.0), (2.0, 2.0)], [(2.0, 5.0)], [(4.0, 4.0)]])
    search_all([search], 0.0, float("inf"))
    assert (search.value, search.bound) == (2.0, 2.0)
    assert search.nodes_opened == [0]
    assert search.evaluated == [2.0]  # the other leaf was pushed again with 2.5
    assert search.opened == 1


def test_leaves_come_before_nodes_of_the_same_bound_and_earlier_leaves_before_later_ones() -> None:
    search = _Search([[(1.0, 1.2), (1.0, 1.1)], [(1.0, 1.0)]])
    for _ in range(3):
        search.step()
    assert search.nodes_opened == [0]
    assert search.evaluated == [1.2, 1.1]


@settings(max_examples=60, deadline=None)
@given(TREES, st.integers(0, 8))
def test_a_search_with_dives_that_stops_proves_no_more_than_holds(tree: Tree, steps: int) -> None:
    search = _Search(tree)
    for _ in range(steps):
        if search.least_left < search.value:
            search.advance(2)
    least = min((value for leaves in tree for _, value in leaves), default=float("inf"))
    assert search.bound <= least <= search.value


def test_with_dives_every_search_is_begun_in_turn_and_has_a_value_before_the_least_bounds_are_raised() -> None:
    first, second = _Search([[(9.0, 9.0)]]), _Search([[(3.0, 3.5)], *([(4.0, 7.0)] for _ in range(99))])
    assert search_all([first, second], 0.9, float("inf"), 1) == "finished"
    assert (first.evaluated, second.value, second.bound) == ([9.0], 3.5, 3.5)
    assert len(second.nodes_opened) == 1


def test_a_value_given_beforehand_has_to_be_improved_by_the_margin() -> None:
    search = _Search([[(9.95, 9.95), (10.0, 10.0), (9.85, 9.85)]], value=10.0, margin=0.01)
    search.step()
    assert search.left == 2
    assert len(search.heap) == 1
    search_all([search], 0.01, float("inf"))
    assert search.value == 9.85


def test_nodes_that_are_not_kept_are_not_opened() -> None:
    search = _Search([[(1.0, 1.0)], [(2.0, 2.0)]])
    search.set_nodes(np.array([1.0, 2.0]), np.array([False, True]))
    assert search_all([search], 0.0, float("inf")) == "finished"
    assert (search.nodes_opened, search.value) == ([1], 2.0)


def test_a_deadline_in_the_past_stops_before_the_first_step_with_the_least_bound() -> None:
    search = _Search([[(3.0, 4.0)]])
    assert search_all([search], 0.0, time.perf_counter() - 1.0) == "time_limit"
    assert (search.bound, search.nodes_opened) == (3.0, [])


@pytest.mark.parametrize("gap", [0.0, 1.0])
def test_a_search_without_nodes_is_finished(gap: float) -> None:
    search = _Search([])
    assert search_all([search], gap, float("inf")) == "finished"
    assert search.bound == float("inf")
