"""Copies in slots of bins: the local search against exact methods, its bound, free shares, and few moves."""

from collections.abc import Sequence

import numpy as np
import pytest
from expert_layouts import least_imbalance
from hypothesis import given, settings
from hypothesis import strategies as st
from spread_models import equal_shares_model, shares_model

from planner.arrays import Bools, Floats, Ints
from planner.errors import PlannerError
from planner.solvers.backends.solve import solve
from planner.solvers.layouts.respread import Uncertainty, certain, hedge, hedged_time, num_moves, respread
from planner.solvers.layouts.shares import pour, solve_free
from planner.solvers.layouts.spread import (
    SpreadProblem,
    bin_times,
    equal_shares,
    require_layout,
    solve_spread,
    time_bound,
)
from planner.solvers.result import Status

SMALL = settings(max_examples=25, deadline=None)
EXACT = settings(max_examples=8, deadline=None)


def problem_of(
    weight: Sequence[float] | Floats,
    slots: Sequence[int] | Ints,
    speed: Sequence[float] | None = None,
    allowed_ER: Bools | None = None,
) -> SpreadProblem:
    """A problem from plain numbers; bins are equally fast unless told."""
    speed_R = np.ones(len(slots)) if speed is None else np.array(speed, np.float64)
    return SpreadProblem(np.array(weight, np.float64), np.array(slots, np.int64), speed_R, allowed_ER)


def _plain(problem: SpreadProblem) -> tuple[Floats, Ints, Floats]:
    assert problem.allowed_ER is None
    return problem.weight_E, problem.slots_R, problem.speed_R


@st.composite
def problems(draw: st.DrawFn, most_items: int = 6, most_bins: int = 3) -> SpreadProblem:
    """A few items and bins, uneven slots, whole weights; every other problem with uneven speeds."""
    bins = draw(st.integers(1, most_bins))
    items = draw(st.integers(1, most_items))
    weights = draw(st.lists(st.integers(0, 20), min_size=items, max_size=items).filter(any))
    slots = draw(
        st.lists(st.integers(1, items), min_size=bins, max_size=bins).filter(lambda slots: sum(slots) >= items)
    )
    speeds = draw(
        st.one_of(st.just([1.0] * bins), st.lists(st.sampled_from([1.0, 0.5, 2.0]), min_size=bins, max_size=bins))
    )
    return problem_of(weights, slots, speeds)


def brute_force(problem: SpreadProblem, *, free: bool = False) -> float:
    """The fastest slowest bin over every way to fill the slots."""
    weights, slots, speeds = (values.tolist() for values in _plain(problem))
    share = least_imbalance(weights, slots, speeds, problem.allowed.tolist(), free=free)
    return float(share * sum(weights) / sum(speeds))


@EXACT
@given(problems(most_items=4))
def test_exact_formulation_agrees_with_brute_force(problem: SpreadProblem) -> None:
    exact = solve(equal_shares_model(*_plain(problem)))
    best = brute_force(problem)
    assert exact.objective is not None
    assert exact.objective == pytest.approx(best, abs=1e-6)
    assert time_bound(problem) <= exact.objective * (1 + 1e-9) + 1e-9


@EXACT
@given(problems())
def test_local_search_stays_between_bound_and_construction_and_near_the_optimum(problem: SpreadProblem) -> None:
    result = solve_spread(problem, tolerance=0.0)
    if result.solution is None:
        return
    assert result.objective is not None
    assert result.bound is not None
    require_layout(problem, result.solution.item_P)
    assert result.bound <= result.objective * (1 + 1e-9)
    assert result.objective == pytest.approx(float(bin_times(problem, result.solution.item_P).max()), rel=1e-9)
    best = brute_force(problem)
    assert result.objective >= best * (1 - 1e-9)
    if result.status is Status.OPTIMAL:
        assert result.objective == pytest.approx(best, rel=1e-6)


def test_local_search_meets_cp_sat_on_most_small_instances() -> None:
    met = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        problem = problem_of(rng.integers(1, 60, 8).astype(float), [3, 3, 3])
        exact = solve(equal_shares_model(*_plain(problem), whole=True), backend="cpsat")
        assert exact.status is Status.OPTIMAL
        assert exact.objective is not None
        result = solve_spread(problem, tolerance=0.0)
        assert result.objective is not None
        assert result.objective >= exact.objective / 6 - 1e-9
        met += result.objective <= exact.objective / 6 * 1.001
    assert met >= 5


@EXACT
@given(problems(most_items=4))
def test_bound_holds_with_free_shares(problem: SpreadProblem) -> None:
    best = brute_force(problem, free=True)
    assert time_bound(problem) <= best * (1 + 1e-9)
    result = solve_free(problem)
    if result.objective is not None:
        assert result.objective >= best * (1 - 1e-9)


@SMALL
@given(problems(), st.integers(0, 1000))
def test_poured_shares_are_those_of_the_linear_program(problem: SpreadProblem, seed: int) -> None:
    start = solve_spread(problem, steps=0, seed=seed).solution
    if start is None:
        return
    shares = pour(problem, start.item_P)
    exact = solve(shares_model(*_plain(problem), start.item_P))
    assert exact.objective is not None
    poured = bin_times(problem, start.item_P, shares)
    assert float(poured.max()) == pytest.approx(exact.objective, rel=1e-4, abs=1e-9)
    carried = np.bincount(start.item_P, weights=shares, minlength=len(problem.weight_E))
    assert carried == pytest.approx(np.ones(len(problem.weight_E)))
    assert (shares >= -1e-12).all()


def _zipf(items: int, bins: int, slots: int, seed: int, power: float = 0.8) -> SpreadProblem:
    rng = np.random.default_rng(seed)
    return problem_of(rng.permutation(1.0 / np.arange(1, items + 1) ** power) * 1000, [slots] * bins)


@pytest.mark.parametrize(("items", "bins", "slots"), [(256, 32, 9), (128, 16, 9), (64, 8, 9)])
def test_layouts_with_many_slots_a_bin_are_within_a_thousandth_of_the_bound(items: int, bins: int, slots: int) -> None:
    for seed in range(3):
        result = solve_spread(_zipf(items, bins, slots, seed))
        assert result.gap is not None
        assert result.gap <= 1e-3


def test_free_shares_close_the_gap_that_few_slots_leave() -> None:
    for seed in range(2):
        problem = _zipf(64, 32, 3, seed)
        equal, free = solve_spread(problem), solve_free(problem)
        assert free.solution is not None
        assert equal.objective is not None
        assert free.objective is not None
        assert free.gap is not None
        assert free.gap <= 5e-3
        assert free.objective < equal.objective
        require_layout(problem, free.solution.item_P)
        carried = np.bincount(free.solution.item_P, weights=free.solution.share_P, minlength=64)
        assert carried == pytest.approx(np.ones(64))


def test_more_bins_than_items_share_freely_too() -> None:
    result = solve_free(problem_of([5.0, 3.0, 1.0], [1] * 6))
    assert result.solution is not None
    assert result.objective == pytest.approx(5 / 3, rel=0.1)


def test_uneven_slots_and_speeds_are_filled_by_speed() -> None:
    rng = np.random.default_rng(5)
    problem = problem_of(rng.lognormal(0, 1, 128), [7] * 16 + [5] * 8, [1.0] * 16 + [0.6] * 8)
    result = solve_spread(problem)
    assert result.gap is not None
    assert result.gap <= 2e-3


def test_items_stay_on_the_bins_that_may_hold_them_and_the_bound_knows() -> None:
    allowed_ER = np.zeros((16, 4), np.bool_)
    allowed_ER[:8, :2] = True
    allowed_ER[8:, 2:] = True
    weights = np.concatenate([np.full(8, 3.0), np.full(8, 1.0)])
    problem = problem_of(weights, [5] * 4, allowed_ER=allowed_ER)
    result = solve_spread(problem)
    assert result.solution is not None
    assert allowed_ER[result.solution.item_P, problem.bin_P].all()
    assert result.bound == pytest.approx(12.0)


def _shifted(seed: int) -> tuple[SpreadProblem, SpreadProblem, Ints]:
    before = _zipf(128, 16, 9, seed)
    resident = solve_spread(before).solution
    assert resident is not None
    noise: Floats = np.random.default_rng(seed + 100).lognormal(0, 0.3, 128)
    return before, problem_of(before.weight_E * noise, before.slots_R), resident.item_P


def test_a_looser_goal_moves_fewer_copies_and_both_goals_are_met() -> None:
    for seed in range(3):
        _, after, resident_P = _shifted(seed)
        bound = time_bound(after)
        moves = []
        for slack in (0.002, 0.02, 0.1):
            result = respread(after, resident_P, bound * (1 + slack))
            assert result.solution is not None
            assert result.objective is not None
            assert result.objective <= bound * (1 + slack) * (1 + 1e-9)
            moves.append(num_moves(after, resident_P, result.solution.item_P))
        fresh = solve_spread(after).solution
        assert fresh is not None
        assert moves[0] > moves[1] > moves[2]
        assert moves[0] < num_moves(after, resident_P, fresh.item_P) / 2


def test_a_resident_layout_good_enough_stays() -> None:
    before, _, resident_P = _shifted(0)
    result = respread(before, resident_P, 1.01 * time_bound(before))
    assert result.solution is not None
    assert (result.solution.item_P == resident_P).all()


def test_hedging_puts_items_that_rise_together_on_different_bins() -> None:
    weights = np.ones(12)
    factor_FE = np.zeros((1, 12))
    factor_FE[0, [0, 1, 2, 3]] = 1.0
    problem = problem_of(weights, [3] * 4)
    uncertainty = Uncertainty(np.zeros(12), factor_FE, 1.0)
    together = np.arange(12)
    item_P = hedge(problem, uncertainty)
    assert item_P is not None
    assert hedged_time(problem, item_P, uncertainty) < hedged_time(problem, together, uncertainty)
    assert sorted(problem.bin_P[np.isin(item_P, [0, 1, 2, 3])].tolist()) == [0, 1, 2, 3]


def test_without_uncertainty_the_hedged_time_is_the_time() -> None:
    problem = _zipf(32, 4, 9, 1)
    result = solve_spread(problem)
    assert result.solution is not None
    assert hedged_time(problem, result.solution.item_P, certain(32)) == pytest.approx(result.objective)


def test_a_seed_gives_one_layout() -> None:
    first, second = (solve_spread(_zipf(64, 16, 5, 2), tolerance=0.0, seed=7).solution for _ in range(2))
    assert first is not None
    assert second is not None
    assert (first.item_P == second.item_P).all()


@pytest.mark.parametrize(
    ("weights", "slots", "said"),
    [
        ([1.0, float("nan")], [1, 1], "item 1 has the weight nan"),
        ([1.0, -2.0], [1, 1], "item 1 has the weight -2"),
        ([0.0, 0.0], [1, 1], "every weight is 0"),
        ([1.0, 2.0, 3.0], [1, 1], "2 slots cannot hold 3 items"),
        ([1.0], [2], "holds none twice"),
        ([1.0], [0], "a bin has no slot"),
    ],
)
def test_figures_that_make_no_sense_are_refused(weights: list[float], slots: list[int], said: str) -> None:
    with pytest.raises(PlannerError, match=said):
        problem_of(weights, slots)


@pytest.mark.parametrize(
    ("layout", "said"),
    [([0, 1, 2], "slots"), ([0, 1, 2, 3], "item 3 of 3"), ([0, 1, 0, 1], "item 2"), ([0, 0, 1, 2], "item 0 twice")],
)
def test_layouts_that_do_not_fit_are_refused(layout: list[int], said: str) -> None:
    problem = problem_of([1.0, 2.0, 3.0], [2, 2])
    with pytest.raises(PlannerError, match=said):
        respread(problem, np.array(layout), 4.0)


def test_shares_of_copies_add_up_to_one_and_empty_slots_have_none() -> None:
    shares = equal_shares(np.array([0, 1, -1, 1]), 2)
    assert shares.tolist() == [1.0, 0.5, 0.0, 0.5]
