"""Waits of routed queues against single servers, one line of many servers, and a simulation from the definition."""

import numpy as np
import pytest

from planner.arrays import Floats
from planner.solvers.stochastic.queueing import mean_wait_s, wait_quantile_s
from planner.solvers.stochastic.routed_queues import Routing, better_routing, routed_wait_quantile_s, routed_wait_s

SERVICE_S = 0.5


def simulated_waits_s(routing: Routing, rho: float, servers: int, cv: float, count: int, seed: int) -> Floats:
    """Waits of arrivals at equal servers, each with a queue of its own, one event after the other."""
    rng = np.random.default_rng(seed)
    deviation = np.sqrt(np.log1p(cv * cv))
    arrivals = np.cumsum(rng.exponential(SERVICE_S / (rho * servers), count))
    services = SERVICE_S * rng.lognormal(-(deviation**2) / 2.0, deviation, count)
    pairs = rng.integers(servers, size=(count, 2))
    ends: list[list[float]] = [[] for _ in range(servers)]
    waits = np.empty(count)
    for i in range(count):
        now, pair = arrivals[i], pairs[i].tolist()
        for s in pair:
            ends[s] = [end for end in ends[s] if end > now]
        if routing is Routing.ROUND_ROBIN:
            server = i % servers
            ends[server] = [end for end in ends[server] if end > now]
        else:
            server = min(pair, key=lambda s: len(ends[s]))
        start = max(now, ends[server][-1] if ends[server] else now)
        waits[i] = start - now
        ends[server].append(start + services[i])
    return waits[count // 10 :]


@pytest.mark.parametrize("routing", Routing)
@pytest.mark.parametrize("cv2", [0.0, 0.5, 4.0])
def test_one_server_waits_as_a_single_queue(routing: Routing, cv2: float) -> None:
    rho = np.linspace(0.0, 0.99, 50)
    known = mean_wait_s(rho, 1, SERVICE_S, cv2_service=cv2)
    assert routed_wait_s(routing, rho, 1, SERVICE_S, cv2_service=cv2) == pytest.approx(known, rel=1e-12)
    p95 = wait_quantile_s(rho, 1, SERVICE_S, 0.95, cv2_service=cv2)
    assert routed_wait_quantile_s(routing, rho, 1, SERVICE_S, 0.95, cv2_service=cv2) == pytest.approx(p95, rel=1e-9)


@pytest.mark.parametrize("servers", [2, 5, 16, 128])
def test_equal_services_in_turn_wait_as_in_one_line(servers: int) -> None:
    rho = np.linspace(0.05, 0.95, 10)
    line = mean_wait_s(rho, servers, SERVICE_S, cv2_service=0.0)
    assert routed_wait_s(Routing.ROUND_ROBIN, rho, servers, SERVICE_S, cv2_service=0.0) == pytest.approx(line)


@pytest.mark.parametrize("routing", Routing)
def test_waits_grow_with_utilisation_and_shrink_with_servers_that_are_busy(routing: Routing) -> None:
    rho = np.linspace(0.01, 0.99, 99)[:, None]
    servers = np.array([1, 2, 3, 6, 12, 40])
    for cv2 in (0.0, 1.0, 4.0):
        for waits in (
            routed_wait_s(routing, rho, servers, 1.0, cv2_service=cv2),
            routed_wait_quantile_s(routing, rho, servers, 1.0, 0.99, cv2_service=cv2),
        ):
            assert np.all(np.diff(waits, axis=0) >= -1e-9)
            assert np.all(np.diff(waits[rho[:, 0] >= 0.7], axis=1) <= 1e-9)
    assert routed_wait_s(routing, 1.0, 4, 1.0) == np.inf
    assert routed_wait_quantile_s(routing, 1.0, 4, 1.0, 0.9) == np.inf


@pytest.mark.parametrize(
    ("routing", "servers", "rho", "cv"),
    [
        (Routing.ROUND_ROBIN, 4, 0.85, 0.0),
        (Routing.ROUND_ROBIN, 8, 0.8, 0.5),
        (Routing.POWER_OF_TWO, 8, 0.85, 0.0),
        (Routing.POWER_OF_TWO, 3, 0.8, 1.0),
        (Routing.POWER_OF_TWO, 16, 0.9, 1.0),
    ],
)
def test_waits_are_near_those_that_are_simulated(routing: Routing, servers: int, rho: float, cv: float) -> None:
    waits_s = simulated_waits_s(routing, rho, servers, cv, 40_000, seed=3)
    mean_s = float(routed_wait_s(routing, rho, servers, SERVICE_S, cv2_service=cv**2))
    alone_s = float(mean_wait_s(rho, 1, SERVICE_S, cv2_service=cv**2))
    error = abs(mean_s - waits_s.mean()) / (SERVICE_S + waits_s.mean())
    assert error < 0.12
    assert error < 0.5 * abs(alone_s - waits_s.mean()) / (SERVICE_S + waits_s.mean())
    p95_s = float(routed_wait_quantile_s(routing, rho, servers, SERVICE_S, 0.95, cv2_service=cv**2))
    assert -0.1 < (p95_s - np.quantile(waits_s, 0.95)) / (SERVICE_S + np.quantile(waits_s, 0.95)) < 0.45


def test_equal_lengths_go_in_turn_and_spread_ones_to_the_shorter_of_two() -> None:
    assert better_routing(1.0, 0.0) is Routing.ROUND_ROBIN
    assert better_routing(1.0, 1.0) is Routing.POWER_OF_TWO
    assert better_routing(4.0, 4.0) is Routing.POWER_OF_TWO
