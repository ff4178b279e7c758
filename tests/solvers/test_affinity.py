"""Items drawn in sets: figures recounted, the best of all small layouts, homes, noise, what is refused."""

from itertools import permutations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.solvers.layouts.affinity import (
    AffinityLayout,
    AffinityProblem,
    covariance,
    expected_slowest,
    groups_touched,
    home_groups,
    judged,
    solve_affinity,
)
from planner.solvers.result import SolveResult


def _solved(problem: AffinityProblem) -> tuple[SolveResult[AffinityLayout], AffinityLayout]:
    result = solve_affinity(problem, steps=5000)
    assert result.solution is not None
    return result, result.solution


def _sets(seed: int, items: int, chosen: int, count: int = 40) -> npt.NDArray[np.int64]:
    rng = np.random.default_rng(seed)
    return np.array([rng.choice(items, chosen, replace=False) for _ in range(count)])


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(0, 2), st.sampled_from([0.0, 1.0, 100.0]))
def test_every_item_has_a_slot_and_figures_are_those_of_the_layout(
    seed: int, groups: int, spare: int, price: float
) -> None:
    bins, items = 2 * groups, 8 * groups
    sets = _sets(seed, items, 3)
    slots_R, group_R = np.full(bins, items // bins + spare), np.arange(bins) // 2
    result, solved = _solved(AffinityProblem(sets, items, slots_R, group_R, price))
    assert np.bincount(solved.item_P, minlength=items).min() >= 1
    item_BS = solved.item_P.reshape(bins, -1)
    assert all(len(set(row)) == len(row) for row in item_BS.tolist())
    copies_E, drawn_E = np.bincount(solved.item_P, minlength=items), np.bincount(sets.ravel(), minlength=items)
    load_R = (drawn_E / copies_E)[item_BS].sum(axis=1)
    assert solved.imbalance == pytest.approx(load_R.max() / load_R.mean())
    assert solved.groups_touched == groups_touched(sets, solved.item_P, slots_R, group_R, items)
    assert result.bound is not None
    assert result.objective is not None
    assert result.bound <= result.objective == pytest.approx(solved.groups_touched + price * solved.fresh_imbalance)


def test_small_layouts_are_within_two_hundredths_of_the_best_of_all() -> None:
    """8 items without copies on 4 bins of 2 groups: every way to fill them."""
    for seed in range(2):
        problem = AffinityProblem(_sets(seed, 8, 2), 8, np.full(4, 2), np.array([0, 0, 1, 1]), 3.0)
        result, _ = _solved(problem)
        covariance_EE = covariance(problem, home_groups(problem)) * problem.noise
        best = np.inf
        for order in permutations(range(8)):
            row = np.array(order)
            if (
                order[0] == 0
                and all(order[2 * bin_] < order[2 * bin_ + 1] for bin_ in range(4))
                and order[4] < order[6]
            ):
                layout = judged(problem, row, covariance_EE)
                best = min(best, layout.groups_touched + 3.0 * layout.fresh_imbalance)
        assert result.objective is not None
        assert best - 1e-9 <= result.objective <= best * 1.02


def test_a_higher_price_of_imbalance_buys_balance_with_groups() -> None:
    rng = np.random.default_rng(5)
    hidden = rng.permutation(32).reshape(4, 8)
    chance = rng.dirichlet(np.ones(4))
    sets = np.array([rng.choice(hidden[rng.choice(4, p=chance)], 3, replace=False) for _ in range(4000)])
    figures = []
    for price in (0.0, 1000.0):
        problem = AffinityProblem(sets, 32, np.full(8, 5), np.arange(8) // 2, price)
        figures.append(_solved(problem)[1])
    touched, slowest = [row.groups_touched for row in figures], [row.fresh_imbalance for row in figures]
    assert touched == sorted(touched)
    assert slowest == sorted(slowest, reverse=True)
    assert touched[0] < touched[-1]


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


def test_the_slowest_of_normal_times_is_that_of_a_simulation() -> None:
    mean_R, deviation_R = np.array([1.0, 0.9, 1.05]), np.array([0.05, 0.2, 0.01])
    drawn = np.random.default_rng(0).normal(mean_R, deviation_R, (200_000, 3)).max(axis=1)
    assert expected_slowest(mean_R, deviation_R) == pytest.approx(drawn.mean(), abs=4 * drawn.std() / 200_000**0.5)
    assert expected_slowest(np.array([1.0, 2.0]), np.zeros(2)) == pytest.approx(2.0, abs=1e-3)


def test_the_imbalance_to_expect_is_that_of_fresh_sets() -> None:
    rng = np.random.default_rng(1)
    chance = rng.lognormal(0, 0.7, 64)
    chance /= chance.sum()

    def draw() -> npt.NDArray[np.int64]:
        return rng.choice(64, (2000, 2), p=chance)

    slots_R, group_R = np.full(8, 9), np.arange(8) // 4
    foreseen, seen = [], []
    for _ in range(6):
        result = _solved(AffinityProblem(draw(), 64, slots_R, group_R))[1]
        foreseen.append(result.fresh_imbalance)
        copies_E = np.bincount(result.item_P, minlength=64)
        for _ in range(20):
            load_R = (np.bincount(draw().ravel(), minlength=64) / copies_E)[result.item_P].reshape(8, -1).sum(axis=1)
            seen.append(load_R.max() / load_R.mean())
    assert np.mean(foreseen) - 1 == pytest.approx(np.mean(seen) - 1, rel=0.2)


def test_bins_that_are_slower_carry_less() -> None:
    sets = _sets(0, 16, 2, 2000)
    speed_R = np.array([1.0, 0.5, 1.0, 0.5])
    result = _solved(AffinityProblem(sets, 16, np.full(4, 6), np.array([0, 0, 1, 1]), speed_R=speed_R))[1]
    assert result.imbalance < 1.1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"items_NK": np.array([[0, 4]])}, "item 4 of 4"),
        ({"slots_R": np.array([3])}, "3 slots cannot hold 4"),
        ({"price": -1.0}, "price: must be at least 0"),
        ({"price": float("nan")}, "price: must be at least 0"),
        ({"fresh_sets": 0}, "fresh sets: must be at least 1"),
        ({"items_NK": np.zeros((0, 2), np.int64)}, r"shape \(0, 2\)"),
    ],
)
def test_what_makes_no_sense_is_refused(change: dict[str, object], said: str) -> None:
    given: dict[str, object] = {
        "items_NK": np.array([[0, 3]]),
        "num_items": 4,
        "slots_R": np.array([4]),
        "group_R": np.array([0]),
    }
    with pytest.raises(PlannerError, match=said):
        AffinityProblem(**(given | change))  # type: ignore[arg-type]  # one wrong field at a time
