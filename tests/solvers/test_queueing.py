"""Waits against exact identities and a simulated queue."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from planner.solvers.stochastic.queueing import (
    erlang_c,
    mean_wait_s,
    wait_quantile_s,
)

RHO = st.floats(0.01, 0.99)


@settings(max_examples=100, deadline=None)
@given(RHO, st.floats(0.01, 10.0), st.floats(0.0, 0.999))
def test_one_exponential_server_has_its_exact_mean_and_quantile(rho: float, service_s: float, p: float) -> None:
    assert mean_wait_s(rho, 1, service_s) == pytest.approx(rho * service_s / (1.0 - rho))
    exact = max(0.0, math.log(rho / (1.0 - p)) * service_s / (1.0 - rho))
    assert wait_quantile_s(rho, 1, service_s, p) == pytest.approx(exact, rel=1e-9, abs=1e-12)


@settings(max_examples=100, deadline=None)
@given(RHO, st.floats(0.01, 10.0), st.floats(0.0, 5.0))
def test_one_server_has_the_mean_of_pollaczek_and_khinchine(rho: float, service_s: float, cv2: float) -> None:
    second_moment = service_s**2 * (1.0 + cv2)
    exact = rho / service_s * second_moment / (2.0 * (1.0 - rho))
    assert mean_wait_s(rho, 1, service_s, cv2_service=cv2) == pytest.approx(exact)
    halved = mean_wait_s(rho, 1, service_s) / 2.0
    assert mean_wait_s(rho, 1, service_s, cv2_service=0) == pytest.approx(halved)


@pytest.mark.parametrize(("rho", "servers"), [(0.5, 2), (0.8, 5), (0.95, 40)])
def test_erlang_c_is_the_ratio_of_its_sums(rho: float, servers: int) -> None:
    load = rho * servers
    waiting = load**servers / math.factorial(servers) / (1.0 - rho)
    exact = waiting / (sum(load**k / math.factorial(k) for k in range(servers)) + waiting)
    assert erlang_c(rho, servers) == pytest.approx(exact)


def simulated_wait_s(arrivals: NDArray[np.float64], services: NDArray[np.float64], servers: int) -> NDArray[np.float64]:
    """Waits of first-come-first-served customers (Kiefer-Wolfowitz: the sorted workloads of the servers)."""
    free_at = [0.0] * servers
    waits = np.empty(len(arrivals))
    for customer, (arrival, service) in enumerate(zip(arrivals.tolist(), services.tolist(), strict=True)):
        earliest = min(range(servers), key=free_at.__getitem__)
        start = max(arrival, free_at[earliest])
        free_at[earliest] = start + service
        waits[customer] = start - arrival
    return waits[len(waits) // 10 :]


@pytest.mark.parametrize(("servers", "rho", "cv2"), [(1, 0.7, 0.0), (4, 0.8, 0.0), (1, 0.8, 0.5), (3, 0.85, 1.0)])
def test_formulas_meet_a_simulated_queue(servers: int, rho: float, cv2: float) -> None:
    draw = np.random.default_rng(7)
    count = 150_000
    arrivals = np.cumsum(draw.exponential(1.0 / (rho * servers), count))
    services = np.ones(count) if cv2 == 0.0 else draw.gamma(1.0 / cv2, cv2, count)
    waits = simulated_wait_s(arrivals, services, servers)
    assert mean_wait_s(rho, servers, 1.0, cv2_service=cv2) == pytest.approx(waits.mean(), rel=0.08)
    p95 = wait_quantile_s(rho, servers, 1.0, 0.95, cv2_service=cv2)
    assert p95 == pytest.approx(np.quantile(waits, 0.95), rel=0.15)


def test_arrays_broadcast_like_single_calls() -> None:
    rho = np.array([[0.2], [0.9]])
    servers = np.array([1, 3, 8])
    table = wait_quantile_s(rho, servers, 0.5, 0.99, cv2_service=0.3)
    assert table.shape == (2, 3)
    for row, column in np.ndindex(2, 3):
        single = wait_quantile_s(rho[row, 0], servers[column], 0.5, 0.99, cv2_service=0.3)
        assert table[row, column] == pytest.approx(single, rel=1e-12)


def test_an_overloaded_queue_waits_for_ever_and_an_idle_one_not_at_all() -> None:
    rho = np.array([0.0, 1.0, 1.5])
    for waits in (
        mean_wait_s(rho, 2, 1.0),
        mean_wait_s(rho, 2, 1.0, cv2_arrival=0.0, cv2_service=0.0),
        mean_wait_s(rho, 2, 1.0, cv2_service=0.0),
        wait_quantile_s(rho, 2, 1.0, 0.9),
    ):
        assert waits.tolist() == [0.0, math.inf, math.inf]


def test_more_servers_at_equal_utilisation_wait_less() -> None:
    waits = wait_quantile_s(0.8, np.arange(1, 20), 1.0, 0.95)
    assert len(waits[waits > 0.0]) > 5
    assert (np.diff(waits[waits > 0.0]) < 0.0).all()
