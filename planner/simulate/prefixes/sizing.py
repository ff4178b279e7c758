"""How much of each tier a trace is worth: the least USD per hour, and the price of memory at which none is bought."""

from dataclasses import dataclass, replace

import numpy as np

from planner.arrays import Floats, Ints
from planner.errors import PlannerError
from planner.simulate.prefixes.tiers_spec import CacheSpec
from planner.solvers.caches.block_requests import BlockRequests
from planner.solvers.caches.stack_distances import stack_distances
from planner.solvers.caches.tiers import Tier, TierProblem, cheapest_tiers, cost_of

DEARER = 1e6  # times the prices of memory: where some is bought even then, no price is told
STEPS = 40  # of the bisection of that price


@dataclass(frozen=True, slots=True)
class Sized:
    """Units of every tier and what they are worth; `none_above` is the factor on prices of memory, None beyond it."""

    units: tuple[int, ...]
    usd_per_hour: float
    usd_per_hour_without: float
    hits: tuple[int, ...]  # by tier
    accesses: int
    memory_usd_per_hour: float
    none_above: float | None
    alone: tuple[float | None, ...]  # USD per hour with all units of one tier; None where its bandwidth is not held


def sized(requests: BlockRequests, spec: CacheSpec) -> Sized:
    """The cheapest units, proven; raises PlannerError for a trace without a span of time."""
    span_s = float(requests.time_s_R[-1] - requests.time_s_R[0])
    if span_s <= 0.0:
        raise PlannerError("all requests come at one time", where="trace", hint="give a trace that spans some time")
    problem = _problem(requests, spec, span_s)
    per_hour = 3600.0 / span_s
    units = cheapest_tiers(problem).solution
    assert units is not None
    none = (0,) * len(units)
    memory = sum(tier.unit_blocks * n * tier.price_per_block for tier, n in zip(problem.tiers, units, strict=True))
    return Sized(
        units,
        cost_of(problem, units) * per_hour,
        cost_of(problem, none) * per_hour,
        tuple(_hits(problem.distance_A, problem.tiers, units)),
        len(requests.block_A),
        memory * per_hour,
        _none_above(problem) if any(units) else None,
        tuple(_alone(problem, index, per_hour) for index in range(len(units))),
    )


def _problem(requests: BlockRequests, spec: CacheSpec, span_s: float) -> TierProblem:
    window_R = ((requests.time_s_R - requests.time_s_R[0]) // spec.window_s).astype(np.int64)
    compute_s_A: Floats = np.float64(spec.compute_s) + spec.compute_s_per_position * requests.position_A.astype(
        np.float64
    )
    tiers = tuple(
        Tier(
            tier.name,
            int(tier.unit_bytes // spec.block_bytes),
            tier.max_units,
            spec.block_bytes / 1e9 * tier.usd_per_gb_hour * span_s / 3600.0,
            spec.block_bytes / (tier.request_bandwidth_bytes_per_s or tier.bandwidth_bytes_per_s),
            tier.bandwidth_bytes_per_s * spec.window_s / spec.block_bytes,
        )
        for tier in spec.tiers
    )
    price_per_s = spec.instance_usd_per_hour / 3600.0
    return TierProblem(stack_distances(requests), compute_s_A, window_R[requests.request_A], tiers, price_per_s)


def _hits(distance_A: Ints, tiers: tuple[Tier, ...], units: tuple[int, ...]) -> list[int]:
    ends = np.cumsum([tier.unit_blocks * count for tier, count in zip(tiers, units, strict=True)])
    starts = np.concatenate([[0], ends[:-1]])
    return [int(((distance_A >= start) & (distance_A < end)).sum()) for start, end in zip(starts, ends, strict=True)]


def _none_above(problem: TierProblem) -> float | None:
    """The factor on all prices of memory from which on nothing is bought."""

    def buys(factor: float) -> bool:
        dearer = tuple(replace(tier, price_per_block=tier.price_per_block * factor) for tier in problem.tiers)
        return any(cheapest_tiers(replace(problem, tiers=dearer)).solution or ())

    low, high = 1.0, 2.0
    while buys(high):
        low, high = high, 2.0 * high
        if high > DEARER:
            return None
    for _ in range(STEPS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if buys(middle) else (low, middle)
        if high - low < 1e-3 * high:
            break
    return high


def _alone(problem: TierProblem, index: int, per_hour: float) -> float | None:
    """What all units of one tier cost: the simple answer."""
    cost = cost_of(problem, tuple(tier.max_units if i == index else 0 for i, tier in enumerate(problem.tiers)))
    return None if cost == np.inf else cost * per_hour
