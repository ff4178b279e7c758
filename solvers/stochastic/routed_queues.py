"""Waits before one of several equal servers, each with a queue of its own, to which a router sends every arrival.

`rho` is the utilisation of each server, `service_s` the mean service time, `cv2_*` squared coefficients of variation.
Orders of arrivals are kept inside a queue; nobody changes queues.

Round robin, server after server in turn. For equal services that is the queue with one line and k servers (each server
takes every k-th, as it would there), and what services vary by each queue meets alone:
    W = W_k(ca2, 0) + rho S cs2 / (2 (1 - rho)),
W_k the wait of one line (Allen and Cunneen, `queueing.mean_wait_s`), the second term that of Pollaczek and Khinchine.

Power of two choices, the one of two servers drawn at random that has fewer requests. Of infinitely many servers with
exponential services a request takes sum_i rho^(2^i - 2) services (Mitzenmacher, "The power of two choices in randomized
load balancing", IEEE TPDS 12 (2001); Vvedenskaya, Dobrushin and Karpelevich 1996). What a finite number adds is the
wait of one line, which is all in heavy traffic:
    W = W_k(ca2, cs2) + (1 - 1/k) (a + b cs2) (sum_i rho^(2^i - 2) - 1) S.
a and b are fitted to a simulation of such queues (`benchmarks/routed_queues.py`). Both are M/G/1 for one server.
"""

from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike

from planner.arrays import Floats
from planner.solvers.stochastic.queueing import erlang_c, mean_wait_s

EQUAL_SERVICES = 0.53  # a: of exponential services, what choosing between two leaves of the wait
SPREAD_SERVICES = 0.30  # b
DOUBLINGS = 12  # of the exponent: rho^(2^12) is nothing for all rho below .995


class Routing(StrEnum):
    """How a router chooses among equal instances."""

    ROUND_ROBIN = "round-robin"
    POWER_OF_TWO = "power-of-two"


def routed_wait_s(
    routing: Routing,
    rho: ArrayLike,
    servers: ArrayLike,
    service_s: ArrayLike,
    *,
    cv2_arrival: ArrayLike = 1.0,
    cv2_service: ArrayLike = 1.0,
) -> Floats:
    """The mean wait; inf for rho >= 1."""
    together, apart = _parts(routing, rho, servers, cv2_arrival, cv2_service)
    wait_s: Floats = (together + apart) * np.asarray(service_s, dtype=float)
    return wait_s


def routed_wait_quantile_s(
    routing: Routing,
    rho: ArrayLike,
    servers: ArrayLike,
    service_s: ArrayLike,
    probability: ArrayLike,
    *,
    cv2_arrival: ArrayLike = 1.0,
    cv2_service: ArrayLike = 1.0,
) -> Floats:
    """The wait that a fraction `probability` of arrivals does not exceed, with an exponential tail.

    P(wait > t) = C exp(-t C / W). C is the chance that all servers of one line are busy as far as the wait is that of
    one line, and for the rest that the servers are which an arrival can come to: one, or two drawn at random.
    """
    together, apart = _parts(routing, rho, servers, cv2_arrival, cv2_service)
    rho_ = np.asarray(rho, dtype=float)
    busy = rho_ if routing is Routing.ROUND_ROBIN else rho_**2
    mean = together + apart
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(mean > 0.0, together / mean, 1.0)
        waits = np.where(np.isfinite(mean), share * erlang_c(rho, servers) + (1.0 - share) * busy, 1.0)
        exceeding = 1.0 - np.asarray(probability, dtype=float)
        tail = np.where(waits > exceeding, mean / waits * np.log(waits / exceeding), 0.0)
    wait_s: Floats = np.where(np.isfinite(mean), tail, np.inf) * np.asarray(service_s, dtype=float)
    return wait_s


def better_routing(cv2_arrival: float, cv2_service: float, servers: int = 8, rho: float = 0.85) -> Routing:
    """The policy of the shorter mean wait for so many servers that are so busy; equal services go round robin."""
    cv2 = {"cv2_arrival": cv2_arrival, "cv2_service": cv2_service}
    waits = {routing: float(routed_wait_s(routing, rho, servers, 1.0, **cv2)) for routing in Routing}
    return min(waits, key=lambda routing: waits[routing])


def _parts(
    routing: Routing, rho: ArrayLike, servers: ArrayLike, cv2_arrival: ArrayLike, cv2_service: ArrayLike
) -> tuple[Floats, Floats]:
    """The mean wait as of one line, and what queues apart add, both in mean services."""
    rho_, servers_ = np.asarray(rho, dtype=float), np.asarray(servers, dtype=float)
    cs2 = np.asarray(cv2_service, dtype=float)
    stable = np.where(rho_ < 1.0, rho_, 0.0)
    if routing is Routing.ROUND_ROBIN:
        together = mean_wait_s(rho, servers, 1.0, cv2_arrival=cv2_arrival, cv2_service=0.0)
        apart = cs2 / 2.0 * stable / (1.0 - stable)
    else:
        together = mean_wait_s(rho, servers, 1.0, cv2_arrival=cv2_arrival, cv2_service=cs2)
        queued = sum((stable ** (2.0**i - 2.0) for i in range(2, DOUBLINGS)), start=np.zeros_like(stable))
        apart = (1.0 - 1.0 / servers_) * (EQUAL_SERVICES + SPREAD_SERVICES * cs2) * queued
    return together, np.where(rho_ < 1.0, apart, np.inf)
