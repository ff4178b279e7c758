"""Items drawn in sets: groups touched counted two ways, homes that bring sets together, every item placed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.solvers.affinity import AffinityProblem, groups_touched, home_groups, solve_affinity


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(0, 2))
def test_every_item_has_a_slot_and_every_slot_an_item(seed: int, groups: int, spare: int) -> None:
    rng = np.random.default_rng(seed)
    bins, items = 2 * groups, 8 * groups
    sets = np.array([rng.choice(items, 3, replace=False) for _ in range(40)])
    slots_R = np.full(bins, items // bins + spare)
    group_R = np.arange(bins) // 2
    item_P = solve_affinity(AffinityProblem(sets, items, slots_R, group_R))
    assert np.bincount(item_P, minlength=items).min() >= 1
    assert len(item_P) == slots_R.sum()
    touched = groups_touched(sets, item_P, slots_R, group_R, items)
    assert 1.0 <= touched <= min(3, groups)


def test_without_copies_a_set_touches_the_homes_of_its_items() -> None:
    sets = np.array([[0, 1], [0, 2], [2, 3]])
    slots_R, group_R = np.array([2, 2]), np.array([0, 1])
    assert groups_touched(sets, np.array([0, 1, 2, 3]), slots_R, group_R, 4) == pytest.approx(4 / 3)


def test_homes_bring_together_what_is_drawn_together() -> None:
    rng = np.random.default_rng(2)
    hidden = rng.permutation(16).reshape(2, 8)
    sets = np.array([rng.choice(hidden[half], 3, replace=False) for half in rng.integers(0, 2, 400)])
    group_E = home_groups(AffinityProblem(sets, 16, np.array([5, 5, 5, 5]), np.array([0, 0, 1, 1])))
    assert all(len(set(group_E[half].tolist())) == 1 for half in hidden)


def test_sets_that_name_no_item_are_refused() -> None:
    with pytest.raises(PlannerError, match="item 4 of 4"):
        AffinityProblem(np.array([[0, 4]]), 4, np.array([4]), np.array([0]))
    with pytest.raises(PlannerError, match="3 slots cannot hold 4"):
        AffinityProblem(np.array([[0, 3]]), 4, np.array([3]), np.array([0]))
