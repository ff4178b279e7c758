"""Work that slots leave over: the table against its sums, a simulation of the walk, and the continuous server."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.solvers.stochastic.slotted_work import MOST_USED, exact_work_left, work_left


@pytest.mark.parametrize(("used", "done"), [(0.3, 0.5), (0.6, 1.0), (0.8, 0.2), (0.9, 3.0)])
def test_sums_are_those_of_the_walk(used: float, done: float) -> None:
    steps = np.random.default_rng(3).gamma(used * done, 1.0, 1_000_000) - done
    walk = np.cumsum(steps)
    left = walk - np.minimum.accumulate(np.minimum(walk, 0.0))
    assert exact_work_left(np.array(used), np.array(done)) == pytest.approx(left.mean(), rel=0.06)


def test_tiny_slots_are_a_continuous_server() -> None:
    assert exact_work_left(np.array(0.7), np.array(0.02)) == pytest.approx(0.7 / (2.0 * 0.3), rel=0.05)


@given(st.floats(0.05, 0.99), st.floats(0.05, 20.0))
def test_the_table_comes_near_the_sums(used: float, done: float) -> None:
    exact = float(exact_work_left(np.array(used), np.array(done)))
    assert work_left(np.array([used]), np.array([done]))[0] == pytest.approx(exact, rel=0.08, abs=5e-3)


@given(st.floats(0.0, 1.5), st.floats(1e-3, 100.0), st.floats(1.0, 1.5))
def test_more_work_leaves_more_and_nothing_is_infinite(used: float, done: float, factor: float) -> None:
    less, more = work_left(np.array([used, min(used * factor, 1.5)]), np.array([done, done]))
    assert 0.0 <= less <= more * (1.0 + 1e-9) < np.inf
    assert more <= MOST_USED / (2.0 * (1.0 - MOST_USED)) * 1.001
