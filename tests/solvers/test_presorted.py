"""Presorted runs against all assignments of items to workers."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.solvers.result import Status
from planner.solvers.schedules.presorted import solve_presorted


def _brute_force(lengths: np.ndarray, workers: list[int], rates: list[np.ndarray]) -> float:
    kinds = [kind for kind, count in enumerate(workers) for _ in range(count)]
    best = np.inf
    for places in itertools.product(range(len(kinds)), repeat=len(lengths)):
        slowest = 0.0
        for worker, kind in enumerate(kinds):
            own = [length for length, place in zip(lengths, places, strict=True) if place == worker]
            if own:
                slowest = max(slowest, float(rates[kind][len(own) - 1] * max(own)))
        best = min(best, slowest)
    return best


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_no_assignment_beats_runs_of_neighbours(seed: int) -> None:
    draw = np.random.default_rng(seed)
    lengths = np.round(draw.lognormal(2, 1, int(draw.integers(1, 7))), 1)
    workers = [int(draw.integers(1, 3)), int(draw.integers(0, 2))]
    rates = [np.cumsum(draw.uniform(0.0, 1.0, len(lengths))) + 0.1 for _ in workers]
    result = solve_presorted(lengths, workers, rates)
    assert result.status is Status.OPTIMAL
    assert result.objective == pytest.approx(_brute_force(lengths, workers, rates), rel=1e-9)
    assert result.gap is not None
    assert result.gap <= 1e-11
    assert result.solution is not None
    taken = sorted(item for run in result.solution for item in range(run.first, run.last))
    assert taken == list(range(len(lengths)))


def test_one_more_worker_never_lengthens_the_slowest_run() -> None:
    draw = np.random.default_rng(3)
    lengths = draw.lognormal(7, 1, 300)
    rate = np.array(0.01 + 1e-4 * np.arange(1, 301), np.float64)
    slowest = [solve_presorted(lengths, [count], [rate]).objective for count in (1, 2, 4, 8, 16, 32)]
    assert slowest == sorted(slowest, key=lambda value: -(value or 0.0))


def test_a_falling_curve_is_refused() -> None:
    with pytest.raises(PlannerError, match="not fall"):
        solve_presorted(np.array([1.0, 2.0]), [1], [np.array([2.0, 1.0])])
