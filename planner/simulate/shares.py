"""Requests shared out between the roles of a plan as its routes say; the routing policy chooses within a share.

Roles that hand caches to each other belong together: a chain, such as those that prefill and those that decode for
them. Instances of a chain take the requests of that chain alone, as those of a model do.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.plan.schema import Decision, Route
from planner.simulate.fleet import Fleet
from planner.simulate.requests import Requests

Ints = NDArray[np.int64]
GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


@dataclass(frozen=True, slots=True)
class Chains:
    """Which chain each role is of, and the share of requests that each chain gets, in the order of the routes."""

    chain_of_role: dict[str, int]
    shares: tuple[float, ...]


def chains_of(decision: Decision) -> Chains | None:
    """The chains of a plan; None where all requests go one way, or where routes leave a role out.

    None also for plans of several workloads: which of them a request is of is not known.
    """
    routes = decision.routing
    if len({route.workload for route in routes}) != 1 or {route.to for route in routes} != _names(decision):
        return None
    joined = _joined(routes)
    totals: dict[str, float] = {}
    for route in routes:
        if route.source is None:
            totals[joined[route.to]] = totals.get(joined[route.to], 0.0) + route.share
    if len(totals) < 2 or set(joined.values()) != set(totals):
        return None
    number = {name: at for at, name in enumerate(totals)}
    whole = sum(totals.values())
    shares = tuple(share / whole for share in totals.values())
    return Chains({role: number[name] for role, name in joined.items()}, shares)


def _names(decision: Decision) -> set[str]:
    return {role.name for role in decision.roles}


def _joined(routes: Sequence[Route]) -> dict[str, str]:
    """Of each role, the one that stands for all roles that caches connect it with."""
    found = {route.to: route.to for route in routes}
    for route in routes:
        if route.source is not None:
            kept, gone = found[route.source], found[route.to]
            found = {role: kept if name == gone else name for role, name in found.items()}
    return found


def chain_of_request(shares: Sequence[float], count: int) -> Ints:
    """The chain of each of `count` requests [R], so that every stretch of them has nearly these shares.

    Multiples of the golden ratio, modulo 1, fill every interval evenly (Knuth, The Art of Computer Programming, volume
    3, section 6.4, theorem S).
    """
    place = (np.arange(1, count + 1) * GOLDEN) % 1.0
    return np.searchsorted(np.cumsum(shares)[:-1], place, side="right").astype(np.int64)


def shared_out(
    fleet: Fleet, role_of_instance: Sequence[str], requests: Requests, chains: Chains
) -> tuple[Fleet, Requests]:
    """The fleet and the requests by chain; a request that its chain has no room for goes to the one with most."""
    of = [chains.chain_of_role[role] for role in role_of_instance]
    room = [_room(fleet, of, chain) for chain in range(len(chains.shares))]
    chosen = chain_of_request(chains.shares, len(requests))
    long = requests.input_tokens + requests.output_tokens > np.asarray(room)[chosen]
    chosen = np.where(long, int(np.argmax(room)), chosen)
    instances = tuple(replace(one, model=chain) for one, chain in zip(fleet.instances, of, strict=True))
    return replace(fleet, instances=instances), replace(requests, model=chosen.astype(np.int64))


def _room(fleet: Fleet, of: Sequence[int], chain: int) -> int:
    """Tokens that some instance of every role of a chain can hold."""
    most: dict[str, int] = {}
    for one, number in zip(fleet.instances, of, strict=True):
        if number == chain:
            most[one.role] = max(most.get(one.role, 0), one.kv_tokens // fleet.block_tokens * fleet.block_tokens)
    return min(most.values())
