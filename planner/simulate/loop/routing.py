"""Routing policies: the instance that a request goes to, at arrival and from prefill to decode.

Round robin takes turns among the instances that take a request: each model, and each role of a path, has its own.
"""

import numpy as np

from planner.simulate.loop.fields import (
    CACHE_AWARE,
    DECODE,
    DECODE_ROUTING,
    FREENESS,
    HANDED,
    IMBALANCE,
    LAST,
    LEAST_LOADED,
    LENGTH_AWARE,
    LIFE,
    LOAD_TOKENS,
    MODEL,
    NONE,
    OPEN,
    POWER_OF_TWO,
    QUEUED,
    QUEUED_BLOCKS,
    RESERVED,
    ROLE,
    ROUND_ROBIN,
    ROUTING,
    SEED,
    SERVES,
    STATE,
    STEPS,
)
from planner.simulate.loop.memory import cached_blocks, growth_within, room
from planner.simulate.loop.program import compiled
from planner.simulate.loop.state import RunState
from planner.simulate.loop.steps import decode_steps
from planner.simulate.loop.stretches import sequences_of

LARGEST = np.iinfo(np.int64).max


@compiled
def takes(s: RunState, i: int, r: int, decoding: bool) -> bool:
    """Whether an instance takes a request at this point of its way."""
    if s.instance[i, LIFE] != OPEN or s.instance[i, SERVES] != s.request[r, LAST if decoding else MODEL]:
        return False
    role = s.instance[i, ROLE]
    return bool(role == DECODE) if decoding else bool(role != DECODE)


@compiled
def draw(seed: int, request: int, number: int) -> float:
    """A random number in [0, 1) that depends on nothing but its arguments (SplitMix64: Steele et al., OOPSLA 2014)."""
    mixed = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(2 * request + number + 1)
    mixed *= np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed = mixed ^ (mixed >> np.uint64(31))
    return float(mixed >> np.uint64(11)) / 9007199254740992.0


@compiled
def room_at(s: RunState, i: int, now_s: float) -> int:
    """Blocks that can be had at this moment, within a stretch."""
    free = room(s, i)
    if s.instance[i, STEPS] > 1:
        free -= growth_within(s, i, decode_steps(s, i, s.instance[i, STEPS], now_s)[0])
    return int(free)


@compiled
def freeness(s: RunState, i: int, now_s: float) -> float:
    """Free blocks less those that the queue asks for, over sequences (Llumnix, arXiv:2406.03243, section 4.4.2)."""
    free = room_at(s, i, now_s) - s.instance[i, QUEUED_BLOCKS]
    sequences = sequences_of(s, i) + s.instance[i, RESERVED] + s.instance[i, QUEUED]
    return float(free / max(sequences, 1))


@compiled
def cost(s: RunState, i: int, r: int, policy: int, now_s: float) -> float:
    """What a routing policy would rather have less of."""
    if policy == LENGTH_AWARE:
        return float(s.instance[i, LOAD_TOKENS])
    if policy == FREENESS:
        return -freeness(s, i, now_s)
    if policy == CACHE_AWARE:
        return -float(cached_blocks(s, i, r))
    return float(s.outstanding[i])


@compiled
def cheapest(s: RunState, r: int, policy: int, decoding: bool, now_s: float) -> int:
    """The instance of least cost; fewer requests break ties, then the number."""
    best, least = NONE, np.inf
    for i in range(len(s.instance)):
        if takes(s, i, r, decoding):
            cost_here = cost(s, i, r, policy, now_s)
            tie = best != NONE and cost_here == least
            if cost_here < least or (tie and s.outstanding[i] < s.outstanding[best]):
                best, least = i, cost_here
    return best


@compiled
def least_loaded(s: RunState, r: int, decoding: bool) -> int:
    """The instance with the fewest requests, the first of equal ones."""
    best, least = NONE, LARGEST
    for i in range(len(s.outstanding)):
        if s.outstanding[i] < least and takes(s, i, r, decoding):
            best, least = i, s.outstanding[i]
    return best


@compiled
def nth(s: RunState, number: int, r: int, decoding: bool) -> int:
    """The instance that takes a request here and has so many before it."""
    for i in range(len(s.instance)):
        if takes(s, i, r, decoding):
            if number == 0:
                return i
            number -= 1
    return NONE


@compiled
def count(s: RunState, r: int, decoding: bool) -> int:
    """Instances that take a request here."""
    total = 0
    for i in range(len(s.instance)):
        if takes(s, i, r, decoding):
            total += 1
    return total


@compiled
def balanced(s: RunState, r: int, decoding: bool) -> bool:
    """Whether the most loaded instance has few requests more than the least loaded."""
    low, high = np.inf, 0.0
    for i in range(len(s.instance)):
        if takes(s, i, r, decoding):
            low = min(low, float(s.outstanding[i]))
            high = max(high, float(s.outstanding[i]))
    return bool(high - low <= IMBALANCE)


@compiled
def route(s: RunState, r: int, now_s: float) -> int:
    """The instance for a request: its first one, or the one that decodes it after prefill; NONE if none is open."""
    decoding = s.request[r, STATE] == HANDED
    policy = s.run[DECODE_ROUTING if decoding else ROUTING]
    if policy == ROUND_ROBIN:
        turns = s.turn[int(decoding)]
        number, total = s.request[r, LAST if decoding else MODEL], count(s, r, decoding)
        if total == 0:
            return NONE
        turn = turns[number]
        turns[number] += 1
        return nth(s, int(turn % total), r, decoding)
    if policy == POWER_OF_TWO:
        total = count(s, r, decoding)
        offset = 2 if decoding else 0
        candidate = nth(s, int(draw(s.run[SEED], r, offset) * total), r, decoding)
        other = nth(s, int(draw(s.run[SEED] + 1, r, offset) * total), r, decoding)
        if total == 0:
            return NONE
        return other if s.outstanding[other] < s.outstanding[candidate] else candidate
    if policy == CACHE_AWARE and not balanced(s, r, decoding):
        policy = LEAST_LOADED
    if policy == LEAST_LOADED:
        return least_loaded(s, r, decoding)
    return cheapest(s, r, policy, decoding, now_s)
