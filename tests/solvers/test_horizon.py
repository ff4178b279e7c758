"""Horizon plans against all paths."""

import itertools

import numpy as np
import pytest
from counted_calls import calls_in
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.solvers.result import Status
from planner.solvers.schedules.horizon import horizon_cost, solve_horizon


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_no_path_is_cheaper(seed: int) -> None:
    draw = np.random.default_rng(seed)
    periods, states, attributes = (int(draw.integers(1, high)) for high in (5, 6, 4))
    cost = draw.exponential(1.0, (periods, states))
    cost[draw.random(cost.shape) < 0.15] = np.inf
    kinds = draw.integers(0, 3, (states, attributes))
    change = draw.exponential(0.5, attributes)
    initial = draw.integers(0, 4, attributes) if draw.random() < 0.5 else None
    paths = itertools.product(range(states), repeat=periods)
    best = min(horizon_cost(path, cost, kinds, change, initial_A=initial) for path in paths)
    result = solve_horizon(cost, kinds, change, initial_A=initial)
    if np.isinf(best):
        assert result.status is Status.INFEASIBLE
    else:
        assert result.objective == pytest.approx(best, rel=1e-12)
        assert result.gap == pytest.approx(0.0, abs=1e-12)


def test_free_changes_take_the_best_state_of_every_period_and_dear_ones_stay() -> None:
    draw = np.random.default_rng(1)
    cost, kinds = draw.random((30, 50)), np.arange(50)[:, None]
    free = solve_horizon(cost, kinds, np.zeros(1))
    assert free.objective == pytest.approx(cost.min(axis=1).sum())
    dear = solve_horizon(cost, kinds, np.array([1e6]))
    assert dear.objective == pytest.approx(cost.sum(axis=0).min())


def test_thousands_of_states_are_solved_by_as_many_calls_as_hundreds() -> None:
    def calls(states: int) -> int:
        draw = np.random.default_rng(2)
        cost, kinds = draw.random((12, states)), draw.integers(0, 60, (states, 3))
        assert solve_horizon(cost, kinds, np.array([0.1, 0.2, 0.05])).status is Status.OPTIMAL
        return calls_in(lambda: solve_horizon(cost, kinds, np.array([0.1, 0.2, 0.05])))

    assert calls(20_000) < 1.5 * calls(500)


@pytest.mark.parametrize(
    ("change", "initial", "said"),
    [([-1.0], None, "less than nothing"), ([1.0], [0, 0], "2 attributes before the first period")],
)
def test_bad_data_are_refused(change: list[float], initial: list[int] | None, said: str) -> None:
    before = None if initial is None else np.array(initial)
    with pytest.raises(PlannerError, match=said):
        solve_horizon(np.ones((2, 3)), np.zeros((3, 1), np.int64), np.array(change), initial_A=before)
