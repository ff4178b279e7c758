"""Queueing theory: steady-state waits of M/M/c, M/G/1 and G/G/c queues, vectorised with numpy broadcasting.

`rho` is the utilisation of each server, `service_s` the mean service time, `cv2_*` squared coefficients of variation
(variance / mean^2: 1 exponential, 0 deterministic). A queue with rho >= 1 is unstable and its wait is `inf`.
"""

import numpy as np
from numpy.typing import ArrayLike

from planner.arrays import Floats


def erlang_c(rho: ArrayLike, servers: ArrayLike) -> Floats:
    """The probability that an arrival waits in M/M/c (Erlang's C).

    Erlang's B is the chance of c among at most c of a Poisson number with the offered load as its mean.
    """
    rho_, servers_ = np.broadcast_arrays(np.asarray(rho, dtype=float), np.asarray(servers, dtype=float))
    stable = rho_ < 1.0
    if servers_.max(initial=1.0) <= 1.0:
        return np.where(stable, rho_, 1.0)
    from scipy.special import gammaincc, gammaln

    load = np.where(stable, rho_, 0.5) * servers_
    with np.errstate(divide="ignore"):
        blocking = np.exp(servers_ * np.log(load) - load - gammaln(servers_ + 1.0)) / gammaincc(servers_ + 1.0, load)
    safe = np.where(stable, rho_, 0.0)
    return np.where(stable, blocking / (1.0 - safe * (1.0 - blocking)), 1.0)


def mean_wait_s(
    rho: ArrayLike,
    servers: ArrayLike,
    service_s: ArrayLike,
    *,
    cv2_arrival: ArrayLike = 1.0,
    cv2_service: ArrayLike = 1.0,
) -> Floats:
    """The mean wait in queue of G/G/c (Allen-Cunneen): (ca2 + cs2) / 2 times that of M/M/c.

    Exact for M/M/c, and for M/G/1, where it is the Pollaczek-Khinchine formula. Source: Allen, "Probability,
    Statistics, and Queueing Theory", 2nd ed. 1990, section 5.3; Pollaczek 1930, Khinchine 1932.
    """
    rho_ = np.asarray(rho, dtype=float)
    variability = (np.asarray(cv2_arrival, dtype=float) + np.asarray(cv2_service, dtype=float)) / 2.0
    with np.errstate(divide="ignore", invalid="ignore"):
        exponential = erlang_c(rho_, servers) * np.asarray(service_s, dtype=float)
        exponential = exponential / (np.asarray(servers, dtype=float) * np.abs(1.0 - rho_))
        return np.where(rho_ < 1.0, variability * exponential, np.inf)


def wait_quantile_s(
    rho: ArrayLike,
    servers: ArrayLike,
    service_s: ArrayLike,
    probability: ArrayLike,
    *,
    cv2_arrival: ArrayLike = 1.0,
    cv2_service: ArrayLike = 1.0,
) -> Floats:
    """The wait in queue that a fraction `probability` of arrivals does not exceed, with an exponential tail.

    P(wait > t) = C exp(-t C / mean wait) with C the probability of waiting (Erlang's C for every queue): exact for
    M/M/c; for others the tail is exponential in the limit and matches the mean. Source: Tijms 2003, section 9.6;
    Kingman's heavy-traffic limit, J. Royal Stat. Soc. B 24 (1962).
    """
    waits = erlang_c(rho, servers)
    mean = mean_wait_s(rho, servers, service_s, cv2_arrival=cv2_arrival, cv2_service=cv2_service)
    exceeding = 1.0 - np.asarray(probability, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        tail = mean / waits * np.log(waits / exceeding)
    return np.where(np.isinf(mean), np.inf, np.where(waits > exceeding, tail, 0.0))
