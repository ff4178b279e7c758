"""Blocks that stay pinned, copied over instances, beside queues of recent blocks: chosen on one window for the next.

The idea of heavy hitters apart is TokenLake's (arXiv:2508.17219): a few blocks carry so much of the load that one
instance cannot hold them alone, and a fixed set of the others ages. Every instance has slots; pinned blocks take one
each on every instance that has a copy, which share their load evenly; each other block has a home, which keeps its most
recent blocks in the slots that pins leave. A prompt hits as far as its blocks are held.

Pins are the blocks asked for most, with weights that decay with age (decay t), k of them; b has enough copies that one
carries at most a part q of the mean load. They are placed heaviest first on the instance with the least expected load.
(t, k, q) are those that do best when pins of the first part of the window are judged on the rest of it.
R request, A access, B block, N instance.
"""

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.arrays import Bools, Floats, Ints
from planner.errors import PlannerError
from planner.solvers.caches.block_requests import BlockRequests
from planner.solvers.caches.stack_distances import NEVER
from planner.solvers.result import SolveResult, Status

WHERE = "hot blocks"
SOLVER = "pins by decayed counts, chosen inside the window"
DECAYS = (math.inf, 1.0, 1.0 / 3.0, 1.0 / 9.0)  # of weights of uses, in windows
PINNED = (0.0, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.45, 0.7)  # share of all slots
PARTS = (0.1, 0.05, 0.25, 0.5)  # of the mean load, on one copy
SECTIONS = 80  # of the range of a price
SPLITS = (0.5, 2.0 / 3.0)  # of the window: where pins are chosen, and from where on they are judged
TOLD = 0.35  # of what an instance's load of recent blocks differs from the mean, in the next window


@dataclass(frozen=True, slots=True, eq=False)
class Homes:
    """Where blocks are kept that nothing pins, and the slots of an instance; raises PlannerError for none."""

    home_B: Ints
    slots_N: Ints

    def __post_init__(self) -> None:
        if not len(self.slots_N) or self.slots_N.min() < 1:
            raise PlannerError("an instance has no slot", where=WHERE, hint="give every instance a slot or more")

    @property
    def instances(self) -> int:
        return len(self.slots_N)


Pins = dict[int, Ints]
"""The instances that hold each pinned block."""


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """What instances serve: hits of each, of how many accesses."""

    load_N: Floats
    hits: int
    accesses: int

    @property
    def hit_rate(self) -> float:
        return self.hits / max(self.accesses, 1)

    @property
    def max_over_mean(self) -> float:
        return float(self.load_N.max() / self.load_N.mean()) if self.hits else 0.0


def served(requests: BlockRequests, homes: Homes, pins: Pins, start_s: float) -> Served:
    """Hits and loads of the requests from `start_s` after the first on, those before fill the caches."""
    hit_A = _hits(requests, homes, pins)
    judged_A = (requests.time_s_R - requests.time_s_R[0])[requests.request_A] >= start_s
    hits_B = np.bincount(requests.block_A[hit_A & judged_A], minlength=requests.num_blocks)
    pinned_B = _pinned(pins, requests.num_blocks)
    load_N = np.bincount(homes.home_B, np.where(pinned_B, 0.0, hits_B), minlength=homes.instances).astype(np.float64)
    for block, instances in pins.items():
        load_N[instances] += hits_B[block] / len(instances)
    return Served(load_N, int(hits_B.sum()), int(judged_A.sum()))


def _hits(requests: BlockRequests, homes: Homes, pins: Pins) -> Bools:
    from planner.solvers.compiled.block_caches import pinned_hits

    room_N = homes.slots_N - _slots_taken(pins, homes.instances)
    if room_N.min() < 0:
        raise PlannerError("pins take more slots than an instance has", where=WHERE, hint="pin fewer blocks")
    pinned_B = _pinned(pins, requests.num_blocks)
    return np.asarray(pinned_hits(requests.first_R, requests.block_A, homes.home_B, pinned_B, room_N))


def _pinned(pins: Pins, num_blocks: int) -> Bools:
    pinned_B = np.zeros(num_blocks, np.bool_)
    pinned_B[list(pins)] = True
    return pinned_B


def _slots_taken(pins: Pins, instances: int) -> Ints:
    taken_N = np.zeros(instances, np.int64)
    for at in pins.values():
        taken_N[at] += 1
    return taken_N


@dataclass(frozen=True, slots=True)
class Rule:
    """How pins are chosen: decay of uses in s, blocks, and the part of the mean load that a copy carries."""

    decay_s: float
    blocks: int
    part: float


def choose_pins(window: BlockRequests, homes: Homes, max_over_mean: float) -> SolveResult[Pins]:
    """Pins for the window that follows, from this one alone; the objective is the hit rate inside it.

    Where no rule keeps the loads within `max_over_mean` inside the window, the most even one is taken.
    """
    started_s = time.perf_counter()
    span_s, slots = float(window.time_s_R[-1] - window.time_s_R[0]), int(homes.slots_N.sum())
    rules = [Rule(t * span_s, round(k * slots), PARTS[0]) for t, k in itertools.product(DECAYS, PINNED)]
    rule, _ = _best(window, homes, rules, max_over_mean)
    rule, hit_rate = _best(window, homes, [replace(rule, part=part) for part in PARTS], max_over_mean)
    pins = pins_of(window, homes, rule)
    return SolveResult(Status.FEASIBLE, "finished", pins, hit_rate, None, time.perf_counter() - started_s, SOLVER)


def _best(window: BlockRequests, homes: Homes, rules: Sequence[Rule], max_over_mean: float) -> tuple[Rule, float]:
    """The rule with the most hits of those that keep loads even, inside the window; else the most even one."""
    judged = [(*_judged(window, homes, rule), rule) for rule in rules]
    even = [row for row in judged if row[1] <= max_over_mean]
    hit_rate, _, rule = max(even, key=lambda row: row[0]) if even else min(judged, key=lambda row: row[1])
    return rule, hit_rate


def _judged(window: BlockRequests, homes: Homes, rule: Rule) -> tuple[float, float]:
    """Hit rate, on average over the splits of the window, and the largest load over the mean of any."""
    rows, span_s = [], float(window.time_s_R[-1] - window.time_s_R[0])
    for split in SPLITS:
        pins = pins_of(window.between(0.0, split * span_s), homes, rule)
        rows.append(served(window, homes, pins, split * span_s))
    return float(np.mean([row.hit_rate for row in rows])), max(row.max_over_mean for row in rows)


def pins_of(window: BlockRequests, homes: Homes, rule: Rule) -> Pins:
    """The blocks that a rule pins, and where."""
    age_s_R = window.time_s_R[-1] - window.time_s_R if len(window) else window.time_s_R
    weight_A = np.exp(-age_s_R / rule.decay_s)[window.request_A]
    weight_B = np.bincount(window.block_A, weight_A, minlength=window.num_blocks)
    order = np.argsort(-weight_B, kind="stable")[: rule.blocks]  # blocks before others of their prompt come first
    chosen = order[weight_B[order] > 0.0]
    uses_B = np.asarray(weight_B * (len(window.block_A) / max(float(weight_B.sum()), 1e-300)))
    load_N = _expected(window, homes, chosen)
    most_each = rule.part * max(float(load_N.mean() + uses_B[chosen].sum() / homes.instances), 1e-9)
    pins, room_N = {}, homes.slots_N.copy()
    for block in chosen:
        copies = min(math.ceil(uses_B[block] / most_each), homes.instances)
        free = np.flatnonzero(room_N > 0)
        at = free[np.argsort(load_N[free], kind="stable")[:copies]]
        if not len(at):
            break
        load_N[at] += uses_B[block] / len(at)
        room_N[at] -= 1
        pins[int(block)] = np.sort(at)
    return pins


def _expected(window: BlockRequests, homes: Homes, chosen: Ints) -> Floats:
    """Hits of recent blocks to expect at each home: those of this window, drawn to their mean."""
    pinned_B = _pinned({int(block): np.zeros(0, np.int64) for block in chosen}, window.num_blocks)
    hit_A = _hits(window, homes, {int(block): np.zeros(0, np.int64) for block in chosen})
    hits_B = np.bincount(window.block_A[hit_A], minlength=window.num_blocks)
    load_N = np.bincount(homes.home_B, np.where(pinned_B, 0, hits_B), minlength=homes.instances)
    return np.asarray(load_N.mean() + TOLD * (load_N - load_N.mean()))


def hit_bound(requests: BlockRequests, homes: Homes, start_s: float) -> float:
    """No pins of blocks that were used before `start_s`, wherever copied, have a higher hit rate from then on.

    An instance with r slots for recent blocks of which q are pinned, somewhere, hits another access only where at most
    r - 1 + q distinct blocks of its home were used since: at most q of them are pinned. So with c = r + q, whose sum
    over homes is at most all slots (a pinned block takes one somewhere), it has at most the accesses at distances below
    c, and those beyond of the c blocks with the most of them. The best sum over homes is bounded by a price of slots.
    """
    from planner.solvers.compiled.block_caches import distances

    judged_A = (requests.time_s_R - requests.time_s_R[0])[requests.request_A] >= start_s
    known_B = np.bincount(requests.block_A[~judged_A], minlength=requests.num_blocks) > 0
    most_NC = []
    for home in range(homes.instances):
        own_A = homes.home_B[requests.block_A] == home
        first_R = np.concatenate([[0], np.cumsum(np.bincount(requests.request_A[own_A], minlength=len(requests)))])
        distance_A = np.asarray(distances(first_R, requests.block_A[own_A], requests.num_blocks))[judged_A[own_A]]
        most_NC.append(_most_hits(requests.block_A[own_A & judged_A], distance_A, known_B))
    return _shared(most_NC, int(homes.slots_N.sum())) / max(int(judged_A.sum()), 1)


def _most_hits(block_A: Ints, distance_A: Ints, known_B: Bools) -> Ints:
    """By slots c of a home: accesses at distances below c, and those beyond of the c known blocks with the most. [C]

    The latter are the sum over m of min(c, blocks with m accesses beyond or more).
    """
    reused = distance_A[distance_A != NEVER]
    most = max(int(reused.max(initial=0)) + 1, len(np.unique(block_A)))
    slots_C = np.arange(most + 1)
    hits_C = np.searchsorted(np.sort(reused), slots_C)
    pinnable = known_B[block_A]
    block, distance = block_A[pinnable], distance_A[pinnable]
    order = np.lexsort((-distance, block))
    block, distance = block[order], distance[order]
    rank = np.arange(len(block)) - np.searchsorted(block, block)  # of an access among those of its block
    for m in range(int(rank.max(initial=-1)) + 1):
        beyond_C = (rank == m).sum() - np.searchsorted(np.sort(distance[rank == m]), slots_C)
        hits_C = hits_C + np.minimum(slots_C, beyond_C)
    return np.asarray(hits_C)


def _shared(most_NC: Sequence[Ints], total: int) -> float:
    """The most of all homes together that share so many slots, or no less: the least over prices of a slot."""

    def priced(price: float) -> float:
        return price * total + sum(float((most_C - price * np.arange(len(most_C))).max()) for most_C in most_NC)

    low, high = 0.0, float(max(most_C.max() for most_C in most_NC)) + 1.0
    for _ in range(SECTIONS):  # the bound is convex in the price
        third = (high - low) / 3.0
        low, high = (low, high - third) if priced(low + third) <= priced(high - third) else (low + third, high)
    return min(priced(0.5 * (low + high)), priced(0.0))
