"""What memory tiers evict where it is not what was used least recently: leaves of least worth, in a heap for each tier.

A leaf of a tier has no block behind it there; no block lies in a faster tier than the one before it in its prompt.

PGDSF (RAGCache, arXiv:2404.12457, section 5.2): a block is worth the clock of its tier, plus its uses times the seconds
to compute it over its size; the clock becomes what the last evicted one was worth.
Farthest next use (Belady 1966): the leaf goes that requests which have not looked yet use last, of equal ones the
deepest. It knows the requests to come, and is a measure for policies that do not.
"""

from planner.simulate.loop.fields import (
    ABOVE,
    CLOCK,
    DEPTH,
    EVICTION,
    FETCH_FROM,
    HEAPED,
    NEXT_USE,
    NONE,
    PGDSF,
    PLACE_IN_HEAP,
    REFERENCES,
    REJECTED,
    STATE,
    TIER,
    USES,
)
from planner.simulate.loop.program import compiled
from planner.simulate.loop.state import RunState


@compiled
def note_use(s: RunState, r: int) -> None:
    """Counts a use of each prefix block of a prefilled prompt, and notes what lies before it."""
    above = NONE
    for index in range(s.prefix_of[r], s.prefix_of[r + 1]):
        block = s.prefix[index]
        s.tier_block[block, USES] += 1
        s.tier_block[block, ABOVE] = above
        above = block


@compiled
def next_use(s: RunState, block: int) -> int:
    """The first request with the block that has not looked for it yet; one beyond all for none."""
    place = s.tier_block[block, NEXT_USE]
    while place < s.use_of[block + 1]:
        r = s.use[place]
        if s.request[r, FETCH_FROM] == NONE and s.request[r, STATE] != REJECTED:
            break
        place += 1
    s.tier_block[block, NEXT_USE] = place
    return int(s.use[place]) if place < s.use_of[block + 1] else len(s.request)


@compiled
def worth(s: RunState, tier: int, block: int) -> float:
    """What a block that comes into a tier is worth there: the least goes first."""
    if s.run[EVICTION] == PGDSF:
        return float(s.instance_s[tier, CLOCK] + s.tier_block[block, USES] * s.block_cost[block])
    return float(-next_use(s, block))


@compiled
def settle(s: RunState, tier: int, block: int) -> None:
    """A block has come into a tier: the one before it is no leaf there, if it was."""
    s.block_worth[block] = worth(s, tier, block)
    row, above = tier - s.run[TIER], s.tier_block[block, ABOVE]
    if above != NONE:
        s.behind[row, above] += 1
        if s.behind[row, above] == 1 and s.cached[tier, above, REFERENCES] == 0:
            remove(s, tier, above)
    if s.behind[row, block] == 0:
        insert(s, tier, block)


@compiled
def depart(s: RunState, tier: int, block: int) -> None:
    """A block has left a tier: the one before it may be a leaf there now."""
    row, above = tier - s.run[TIER], s.tier_block[block, ABOVE]
    if s.behind[row, block] == 0:
        remove(s, tier, block)
    if above != NONE:
        s.behind[row, above] -= 1
        if s.behind[row, above] == 0 and s.cached[tier, above, REFERENCES] == 0:
            insert(s, tier, above)


@compiled
def least_worth(s: RunState, tier: int) -> int:
    """The leaf that a tier evicts; its clock goes on to what that was worth."""
    block = s.tier_heap[tier - s.run[TIER], 0]
    if s.run[EVICTION] == PGDSF:
        s.instance_s[tier, CLOCK] = s.block_worth[block]
    return int(block)


@compiled
def goes_first(s: RunState, block: int, other: int) -> bool:
    """Whether a leaf is evicted before another: of equal worth the deeper one, then the one of lower number."""
    if s.block_worth[block] != s.block_worth[other]:
        return bool(s.block_worth[block] < s.block_worth[other])
    if s.tier_block[block, DEPTH] != s.tier_block[other, DEPTH]:
        return bool(s.tier_block[block, DEPTH] > s.tier_block[other, DEPTH])
    return bool(block < other)


@compiled
def insert(s: RunState, tier: int, block: int) -> None:
    """Puts a leaf into the heap of a tier."""
    row, place = tier - s.run[TIER], s.instance[tier, HEAPED]
    s.instance[tier, HEAPED] += 1
    put(s, row, place, block)
    rise(s, row, place)


@compiled
def remove(s: RunState, tier: int, block: int) -> None:
    """Takes a leaf out of the heap of a tier."""
    row, place = tier - s.run[TIER], s.tier_block[block, PLACE_IN_HEAP]
    s.instance[tier, HEAPED] -= 1
    count = s.instance[tier, HEAPED]
    if place < count:
        put(s, row, place, s.tier_heap[row, count])
        rise(s, row, place)
        sink(s, row, place, count)


@compiled
def put(s: RunState, row: int, place: int, block: int) -> None:
    """A leaf at a place of a heap."""
    s.tier_heap[row, place] = block
    s.tier_block[block, PLACE_IN_HEAP] = place


@compiled
def rise(s: RunState, row: int, place: int) -> None:
    """Lets a leaf change places with those above it that go later."""
    while place > 0:
        parent = (place - 1) // 2
        block, other = s.tier_heap[row, place], s.tier_heap[row, parent]
        if not goes_first(s, block, other):
            return
        put(s, row, parent, block)
        put(s, row, place, other)
        place = parent


@compiled
def sink(s: RunState, row: int, place: int, count: int) -> None:
    """Lets a leaf change places with those below it that go earlier."""
    while 2 * place + 1 < count:
        child = 2 * place + 1
        if child + 1 < count and goes_first(s, s.tier_heap[row, child + 1], s.tier_heap[row, child]):
            child += 1
        block, other = s.tier_heap[row, place], s.tier_heap[row, child]
        if not goes_first(s, other, block):
            return
        put(s, row, child, block)
        put(s, row, place, other)
        place = child
