"""Collectives priced by the place of their group in the topology.

A group is spread over the levels of the topology from the inside out: g_1 ranks share an innermost domain, g_2 of
those bundles share the next, and so on, g = g_1 g_2 ... . Each level runs its part at its own bandwidth (alpha-beta
model; hierarchical algorithms as in NCCL): all-reduce is reduce-scatter inwards, then all-gather outwards, and outer
levels see 1/g_1 of the buffer.
"""

from dataclasses import dataclass

import numpy as np

from planner.costs.operators import Collective, distinct_places
from planner.costs.parameters import Efficiencies
from planner.costs.shapes import FloatArray
from planner.hardware.topology import Topology

_SWEEPS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0}


@dataclass(frozen=True, slots=True)
class _Tier:
    """One level as this group sees it [N]: ranks that talk there, their common bandwidth and latency."""

    ranks: FloatArray
    inside: FloatArray  # ranks already joined at inner levels
    bandwidth_bytes_per_s: FloatArray
    latency_s: float
    outer: bool  # beyond the innermost domain


def collective_s(op: Collective, topology: Topology, efficiencies: Efficiencies) -> FloatArray:
    """Seconds [N] of one run; zero for groups of one."""
    tiers = _tiers(op, topology)
    match op.kind:
        case "p2p":
            total = _p2p(op, tiers, efficiencies)
        case "all_to_all":
            total = _all_to_all(op, tiers, efficiencies)
        case _:
            total = _ring(op, tiers, efficiencies)
    return np.where((op.group > 1) & (op.size_bytes > 0), total, 0.0)


def _tiers(op: Collective, topology: Topology) -> list[_Tier]:
    joined = topology.members_per_domain(op.group.astype(np.int64), op.stride.astype(np.int64))
    tiers: list[_Tier] = []
    before = np.ones_like(op.group)
    for level, members in zip(topology.levels, joined, strict=True):
        here = np.maximum(members.astype(np.float64), before)
        ranks = here / before
        tiers.append(_Tier(ranks, before, level.rate_bytes_per_s(ranks), level.latency_s, bool(tiers)))
        before = here
    return tiers


def _start(tier: _Tier, efficiencies: Efficiencies) -> FloatArray:
    """Latency of a collective over this tier: a start, and more for every doubling of the ranks."""
    steps = np.log2(np.maximum(tier.ranks, 1.0))
    start = efficiencies.collective_start_s + tier.latency_s + (efficiencies.collective_hop_s + tier.latency_s) * steps
    return np.where(tier.ranks > 1, start, 0.0)


def _rate(tier: _Tier, efficiencies: Efficiencies) -> FloatArray:
    """Bytes per second and device [N]: links inside the innermost domain and those outside it have efficiencies."""
    inner, outer = efficiencies.collective_bandwidth, efficiencies.fabric_bandwidth
    return tier.bandwidth_bytes_per_s * (outer if tier.outer else inner)


def _ring(op: Collective, tiers: list[_Tier], efficiencies: Efficiencies) -> FloatArray:
    total = np.zeros_like(op.group)
    for tier in tiers:
        share = (tier.ranks - 1.0) / tier.ranks * op.size_bytes / tier.inside
        total = total + _SWEEPS[op.kind] * share / _rate(tier, efficiencies) + _start(tier, efficiencies)
    return total


def _all_to_all(op: Collective, tiers: list[_Tier], efficiencies: Efficiencies) -> FloatArray:
    """Every level carries what leaves the domains inside it; levels work at the same time."""
    slowest = np.zeros_like(op.group)
    start = np.zeros_like(op.group)
    for tier in tiers:
        leaving = np.where(tier.ranks > 1, _leaving_bytes(op, tier), 0.0)
        slowest = np.maximum(slowest, leaving / _rate(tier, efficiencies))
        start = start + _start(tier, efficiencies)
    return slowest + start


def _leaving_bytes(op: Collective, tier: _Tier) -> FloatArray:
    """What a rank sends out of the domains inside this tier.

    A forwarded token crosses once to each domain that holds one of its choices, its own aside; copies that travel
    alone cross once each.
    """
    alone = op.size_bytes * (1.0 - tier.inside / op.group)
    if op.forwarded is None or op.choices == 0:
        return alone
    copies = distinct_places(op.group, op.choices, op.among)
    domains = op.group / tier.inside
    once = op.size_bytes / copies * distinct_places(domains, op.choices, op.among) * (1.0 - 1.0 / domains)
    return np.where(op.forwarded > 0, once, alone)


def _p2p(op: Collective, tiers: list[_Tier], efficiencies: Efficiencies) -> FloatArray:
    """One message over the outermost level that the pair spans."""
    total = np.zeros_like(op.group)
    for tier in tiers:
        here = op.size_bytes / _rate(tier, efficiencies) + efficiencies.collective_start_s + tier.latency_s
        total = np.where(tier.ranks > 1, here, total)
    return total
