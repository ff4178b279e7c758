"""Nested memory tiers of prefixes: what a request is given of its prompt, and what stays once it is prefilled.

A tier is a row of instances that never runs. Blocks of prefilled prompts are kept in the first one; what a tier has no
room for falls to the next, and from the last one out.
"""

from planner.simulate.loop.fields import (
    EVICTION,
    FETCH_FROM,
    FETCHED,
    FREE,
    HIT_TOKENS,
    LEAST_RECENT,
    LINK_RATE,
    NONE,
    NUM_TIERS,
    OLDEST,
    REFERENCES,
    REQUEST_RATE,
    SENT,
    TIER,
)
from planner.simulate.loop.memory import link, unlink
from planner.simulate.loop.program import compiled
from planner.simulate.loop.state import RunState
from planner.simulate.loop.tiers.eviction import depart, least_worth, note_use, settle


@compiled
def fetched_s(s: RunState, r: int, hits: int, now_s: float) -> float:
    """When the prefix blocks behind the first `hits` that memory tiers have are there; asks for them.

    Tiers give side by side, each to one request after another, and to none faster than a request may go.
    """
    first, done_s = s.prefix_of[r], now_s
    s.request[r, FETCH_FROM] = hits
    for index in range(first, first + hits):
        s.request[r, FETCHED] += s.prefix_size[s.prefix[index], 0]
    end = first + hits
    while end < s.prefix_of[r + 1] and tier_of(s, s.prefix[end]) != NONE:
        end += 1
    for tier in range(s.run[TIER], s.run[TIER] + s.run[NUM_TIERS]):
        tokens = 0
        for index in range(first + hits, end):
            if tier_of(s, s.prefix[index]) == tier:
                tokens += s.prefix_size[s.prefix[index], 0]
        if tokens > 0:
            start = max(now_s, s.instance_s[tier, SENT])
            s.instance_s[tier, SENT] = start + tokens / s.instance_s[tier, LINK_RATE]
            done_s = max(done_s, s.instance_s[tier, SENT], start + tokens / s.instance_s[tier, REQUEST_RATE])
            s.instance[tier, HIT_TOKENS] += tokens
            s.request[r, FETCHED] += tokens
    return float(done_s)


@compiled
def tier_of(s: RunState, block: int) -> int:
    """The memory tier that has a prefix block; NONE if none has."""
    for tier in range(s.run[TIER], s.run[TIER] + s.run[NUM_TIERS]):
        if s.cached[tier, block, REFERENCES] == 0:
            return int(tier)
    return NONE


@compiled
def keep_in_tiers(s: RunState, r: int) -> None:
    """Puts the prefix blocks of a prefilled prompt into the first tier, its first block as the most recent of all."""
    first, last = s.run[TIER], s.run[TIER] + s.run[NUM_TIERS]
    if first == NONE:
        return
    for index in range(s.prefix_of[r], s.prefix_of[r + 1]):
        tier = tier_of(s, s.prefix[index])
        if tier != NONE:
            leave_tier(s, tier, s.prefix[index])
    if s.run[EVICTION] != LEAST_RECENT:
        note_use(s, r)
    for index in range(s.prefix_of[r + 1] - 1, s.prefix_of[r] - 1, -1):
        enter_tier(s, first, s.prefix[index])
    for tier in range(first, last):
        while s.instance[tier, FREE] < 0:
            block = s.instance[tier, OLDEST] if s.run[EVICTION] == LEAST_RECENT else least_worth(s, tier)
            leave_tier(s, tier, block)
            if tier + 1 < last:
                enter_tier(s, tier + 1, block)


@compiled
def leave_tier(s: RunState, tier: int, block: int) -> None:
    """Takes a prefix block out of a memory tier."""
    unlink(s, tier, block)
    s.cached[tier, block, REFERENCES] = NONE
    s.instance[tier, FREE] += s.prefix_size[block, 1]
    if s.run[EVICTION] != LEAST_RECENT:
        depart(s, tier, block)


@compiled
def enter_tier(s: RunState, tier: int, block: int) -> None:
    """Makes a prefix block the most recent of a memory tier, which may have less than no room then."""
    s.cached[tier, block, REFERENCES] = 0
    link(s, tier, block)
    s.instance[tier, FREE] -= s.prefix_size[block, 1]
    if s.run[EVICTION] != LEAST_RECENT:
        settle(s, tier, block)
