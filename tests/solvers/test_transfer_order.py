"""Orders of transfers and computes in a buffer against all orders, simulated in small steps; bad input."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.solvers.result import Status
from planner.solvers.workflow.transfer_order import Clusters, johnson, least_makespan, lower_bound_s, makespan_s


def random_problem(seed: int, clusters: int) -> Clusters:
    draws = np.random.default_rng(seed)
    size = [int(b) for b in draws.integers(1, 9, clusters)]
    rows = [tuple(float(v) for v in draws.integers(low, 9, clusters)) for low in (0, 0)]
    return Clusters(rows[0], rows[1], tuple(float(b) for b in size), float(max(size) + draws.integers(0, 8)))


def simulated_s(problem: Clusters, order: tuple[int, ...]) -> float:
    """Every start at the first whole second that the definition allows; times are whole."""
    spans: list[tuple[int, int, float]] = []  # from, to, bytes
    link = gpu = 0
    for cluster in order:
        size, start = problem.bytes_I[cluster], link
        while sum(b for _, end, b in spans if end > start) + size > problem.buffer_bytes:
            start += 1
        link = start + int(problem.transfer_s_I[cluster])
        gpu = max(gpu, link) + int(problem.compute_s_I[cluster])
        spans.append((start, gpu, size))
    return float(gpu)


@pytest.mark.parametrize("seed", range(100))
def test_no_order_ends_earlier(seed: int) -> None:
    problem = random_problem(seed, 2 + seed % 4)
    orders = list(itertools.permutations(range(len(problem.bytes_I))))
    least = min(simulated_s(problem, order) for order in orders)
    result = least_makespan(problem)
    assert result.status is Status.OPTIMAL
    assert result.objective == pytest.approx(least)
    assert result.solution in orders
    assert lower_bound_s(problem) <= least + 1e-9


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 9))
def test_any_order_is_read_off_as_it_is_simulated_and_no_shorter_than_the_bound(seed: int, clusters: int) -> None:
    problem = random_problem(seed, clusters)
    order = tuple(int(i) for i in np.random.default_rng(seed).permutation(clusters))
    for each in (order, johnson(problem)):
        assert makespan_s(problem, each) == pytest.approx(simulated_s(problem, each))
        assert makespan_s(problem, each) >= lower_bound_s(problem) - 1e-9


def test_clusters_that_never_fit_are_refused() -> None:
    with pytest.raises(PlannerError, match="buffer of at least 5"):
        Clusters((1.0,), (1.0,), (5.0,), 4.0)
    with pytest.raises(PlannerError, match="1, 2, 1 transfers"):
        Clusters((1.0,), (1.0, 2.0), (5.0,), 6.0)
    with pytest.raises(PlannerError, match="0 or more"):
        Clusters((-1.0,), (1.0,), (5.0,), 6.0)
