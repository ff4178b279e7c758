"""Time of collectives (all-reduce, all-gather, all-to-all, ...) by the place of their group in the network topology.

A group is spread over the levels of the topology from the inside out: g_1 ranks share an innermost domain, g_2 of
those bundles share the next, and so on, g = g_1 g_2 ... . Each level runs its part at its own bandwidth (alpha-beta
model; hierarchical algorithms as in NCCL): all-reduce is reduce-scatter inwards, then all-gather outwards, and outer
levels see 1/g_1 of the buffer. All-gathers and reduce-scatters that leave the innermost domain are one ring through all
levels (`rings`).

Inside a domain an all-reduce is the faster of two: one kernel that reads all ranks' buffers, with a start but a part of
the bandwidth (the engines' own, for short messages), or one in stages, with STAGED starts (NCCL's). Kernel tables of
A100, H100, H200, B200 and GB200: 3.1 us and 1.6 us a doubling at 0.29 of the link against 5.4 us and 5.8 us at 1.2
(NVLink SHARP included). The engines' own kernels end at the innermost domain: beyond it short messages take NCCL's
protocol LL, which starts as soon but carries a flag beside every word.

Tokens exchanged all to all are packed and signalled before they move: in domains of up to BOARD devices that takes far
longer than the links do (DeepEP for 16 tokens a rank on eight GPUs: 70 and 49 us in TensorRT-LLM, 23 and 23 us in
SGLang, 75 and 77 us with kernels for many tokens); in wider ones ranks write to each other directly (13 us to prepare,
13 and 16 us, GB200).
"""

from dataclasses import dataclass

import numpy as np

from planner.arrays import Bools, Floats
from planner.costs.operators.exchanges import SWEEPS
from planner.costs.operators.experts import distinct_places
from planner.costs.operators.kernels import Collective
from planner.costs.rates.calibration import Efficiencies
from planner.costs.rates.rings import ring_ll_bytes_per_s, ring_s
from planner.hardware.topology import Topology

STAGED = 3.0  # starts of an all-reduce in stages, of those of one in a single kernel
FLAGGED = 2.0  # bytes that protocol LL moves for each of a message
LL_BYTES_PER_S = 19.5e9
"""The most of an all-reduce by a tree in protocol LL: half of 39 GB/s, over two nodes (NCCL's src/graph/tuning.cc)."""
RINGS = ("all_gather", "reduce_scatter")
BOARD = 8  # devices of the largest domain whose all-to-all of tokens is packed


@dataclass(frozen=True, slots=True)
class _Tier:
    """One level as this group sees it [N]: ranks that talk there, their common bandwidth and latency."""

    ranks: Floats
    inside: Floats  # ranks already joined at inner levels
    bandwidth_bytes_per_s: Floats
    latency_s: float


@dataclass(frozen=True, slots=True)
class CollectiveRoute:
    """A collective's way through the topology [N]: seconds at full bandwidth, how often it starts, fixed latency."""

    inside_s: Floats  # in the innermost domain
    outside_s: Floats  # beyond it
    starts: Floats
    doublings: Floats  # of the ranks, over all levels
    latency_s: Floats
    concurrent: Bools  # both parts run at the same time
    reduces: Bools  # an all-reduce, which can run in one kernel
    flagged_s: Floats  # at least, of one that leaves the innermost domain, in protocol LL; 0 of others
    ranks: Floats
    domains: Floats  # innermost ones that a ring passes through; 1 of all else
    crossing_s: Floats  # latency of the network from domain to domain
    packed: Floats  # 1 where tokens are packed before they are exchanged,
    direct: Floats  # or written by each rank to the others directly

    def seconds(self, known: Efficiencies) -> Floats:
        """Seconds [N] of one run; zero where nothing moves."""
        inside, outside = self.inside_s / known.collective_bandwidth, self.outside_s / known.fabric_bandwidth
        start = known.collective_start_s * self.starts + known.collective_hop_s * self.doublings
        flagged = np.maximum(self.flagged_s, FLAGGED * (inside + outside))
        alone = np.where(self.flagged_s > 0, flagged, self.inside_s / known.direct_bandwidth)
        reduced = np.minimum(start + alone, STAGED * start + inside + outside)
        together = np.maximum(inside, outside)
        moved = start + np.where(self.concurrent, together, inside + outside)
        moved = np.where(self.domains > 1, self._ring_s(known, together), moved)
        exchange = known.exchange_start_s * self.packed + known.wide_exchange_start_s * self.direct
        return np.where(self.reduces, reduced, moved) + self.latency_s + exchange

    def _ring_s(self, known: Efficiencies, moved_s: Floats) -> Floats:
        latencies = self.crossing_s, known.collective_start_s, known.collective_hop_s
        return ring_s(moved_s, self.flagged_s, self.ranks, self.domains, *latencies)


def collective_s(op: Collective, topology: Topology, efficiencies: Efficiencies) -> Floats:
    """Seconds [N] of one run; zero for groups of one."""
    return route(op, topology).seconds(efficiencies)


def route(op: Collective, topology: Topology) -> CollectiveRoute:
    """Where the bytes of one run go [N]; all zero for groups of one."""
    tiers, none = _tiers(op, topology), np.zeros_like(op.group)
    live = ((op.group > 1) & (op.size_bytes > 0)).astype(np.float64)
    spans = [(tier.ranks > 1) * live for tier in tiers]
    doublings = [span * np.log2(np.maximum(tier.ranks, 1.0)) for span, tier in zip(spans, tiers, strict=True)]
    if op.kind == "p2p":
        spans, doublings = _outermost(spans), [none for _ in tiers]
    latency = none
    for span, more, tier in zip(spans, doublings, tiers, strict=True):
        latency = latency + (span + more) * tier.latency_s
    parts = [_part(op, tier) * span for span, tier in zip(spans, tiers, strict=True)]
    exchanged, reduced = op.kind == "all_to_all", op.kind == "all_reduce"
    concurrent = exchanged or op.kind in RINGS
    outside = np.maximum.reduce([none, *parts[1:]]) if concurrent else sum(parts[1:], none)
    both, reduces = (np.full(len(none), value) for value in (concurrent, reduced))
    tokens, board = exchanged and op.choices > 0, topology.levels[0].size <= BOARD
    packed, direct = live * (tokens and board), live * (tokens and not board)
    starts, more = sum(spans, none), sum(doublings, none)
    domains = np.where(live * (op.kind in RINGS) > 0, op.group / tiers[0].ranks, 1.0)
    flagged = np.where(domains > 1, (op.group - 1.0) / op.group * op.size_bytes / ring_ll_bytes_per_s(domains), 0.0)
    flagged = np.where(reduces & (outside > 0), op.size_bytes / LL_BYTES_PER_S, flagged)
    crossing = np.maximum.reduce([span * tier.latency_s for span, tier in zip(spans, tiers, strict=True)][1:] or [none])
    latency = np.where(domains > 1, spans[0] * tiers[0].latency_s, latency)  # beyond it at each crossing
    return CollectiveRoute(
        parts[0], outside, starts, more, latency, both, reduces, flagged, op.group, domains, crossing, packed, direct
    )  # fmt: skip


def _outermost(spans: list[Floats]) -> list[Floats]:
    """Only the last level that each pair spans: one message crosses it."""
    left = np.ones_like(spans[0])
    kept: list[Floats] = []
    for span in reversed(spans):
        kept.append(span * left)
        left = left * (1.0 - span)
    return kept[::-1]


def _part(op: Collective, tier: _Tier) -> Floats:
    """Seconds [N] of this level at its full bandwidth."""
    match op.kind:
        case "p2p":
            size = op.size_bytes
        case "all_to_all":
            size = _leaving_bytes(op, tier)
        case "all_gather" | "reduce_scatter":
            size = (op.group - 1.0) / op.group * op.size_bytes / tier.inside
        case _:
            size = SWEEPS[op.kind] * (tier.ranks - 1.0) / tier.ranks * op.size_bytes / tier.inside
    return np.where(tier.ranks > 1, size / tier.bandwidth_bytes_per_s, 0.0)


def _tiers(op: Collective, topology: Topology) -> list[_Tier]:
    joined = topology.members_per_domain(op.group.astype(np.int64), op.stride.astype(np.int64))
    tiers: list[_Tier] = []
    before = np.ones_like(op.group)
    for level, members in zip(topology.levels, joined, strict=True):
        here = np.maximum(members.astype(np.float64), before)
        ranks = here / before
        tiers.append(_Tier(ranks, before, level.rate_bytes_per_s(ranks), level.latency_s))
        before = here
    return tiers


def _leaving_bytes(op: Collective, tier: _Tier) -> Floats:
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
