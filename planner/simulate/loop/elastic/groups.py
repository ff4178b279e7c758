"""Decode groups of elastic sequence parallelism: requests that share instances, and their common steps."""

from planner.simulate.loop.elastic.fields import (
    CONTEXT_TOKENS,
    GROUP,
    HEAD,
    IN_GROUP,
    IN_STEP,
    KNOWN,
    LED_BY,
    LENGTHS,
    MASTERS,
    NUM_DECODING,
    SOONEST,
    STEP,
    STEPPING,
    STEPS_MADE,
)
from planner.simulate.loop.elastic.state import Common
from planner.simulate.loop.elastic.times import decode_s, lowest, size
from planner.simulate.loop.fields import (
    BLOCK_TOKENS,
    CAPACITY,
    DECODING,
    FREE,
    GENERATED,
    INPUT,
    MOST_SEQUENCES,
    NONE,
    OUTPUT,
    PEAK_BLOCKS,
    SIBLING,
    START,
    STATE,
)
from planner.simulate.loop.heaps import set_end
from planner.simulate.loop.program import compiled
from planner.simulate.loop.state import RunState


@compiled
def keep(s: RunState, c: Common, r: int, i: int, blocks: int) -> None:
    """Keeps blocks of an instance for a request."""
    c.kept[r, i] += blocks
    c.holders[r] |= 1 << i
    s.instance[i, FREE] -= blocks
    s.instance[i, PEAK_BLOCKS] = max(s.instance[i, PEAK_BLOCKS], s.instance[i, CAPACITY] - s.instance[i, FREE])


@compiled
def give_up(s: RunState, c: Common, r: int, i: int, blocks: int) -> None:
    """Gives blocks of an instance that were kept for a request up."""
    c.kept[r, i] -= blocks
    s.instance[i, FREE] += blocks
    if c.kept[r, i] == 0:
        c.holders[r] &= ~(1 << i)


@compiled
def start_step(s: RunState, c: Common, members: int, seconds: float, now_s: float) -> None:
    """Starts a step of a set of instances."""
    i = lowest(members)
    c.common[STEPPING] |= members
    c.led[i, STEP] = members
    s.instance_s[i, START] = now_s
    set_end(s, i, now_s + seconds)


@compiled
def note_tokens(s: RunState, c: Common, i: int) -> None:
    """Requests of a group get the tokens of the steps that it has made."""
    r = c.led[i, HEAD]
    for _ in range(c.led[i, IN_STEP]):
        s.request[r, GENERATED] += c.led[i, STEPS_MADE]
        r = s.request[r, SIBLING]
    c.led[i, STEPS_MADE] = 0


@compiled
def join_groups(c: Common, members: int) -> None:
    """A group of these instances, and of all groups that have one of them."""
    for i in range(len(c.led)):
        if c.led[i, GROUP] & members:
            members |= c.led[i, GROUP]
            c.led[i, GROUP] = 0
    c.led[lowest(members), GROUP] = members


@compiled
def drop_finished(s: RunState, c: Common) -> None:
    """Leaves those out that decode no more."""
    left = 0
    for index in range(c.common[NUM_DECODING]):
        r = c.decoding[index]
        if s.request[r, STATE] == DECODING:
            c.decoding[left] = r
            left += 1
    c.common[NUM_DECODING] = left


@compiled
def form_groups(s: RunState, c: Common) -> None:
    """Requests that share instances, directly or by others, form one group, where that is not known."""
    if c.common[KNOWN] == 1:
        return
    c.common[KNOWN] = 1
    for i in range(len(c.led)):
        note_tokens(s, c, i)
        c.led[i, GROUP], c.led[i, LED_BY], c.led[i, HEAD] = 0, NONE, NONE
        c.led[i, IN_STEP] = c.led[i, IN_GROUP] = c.led[i, LENGTHS] = 0
    drop_finished(s, c)
    for index in range(c.common[NUM_DECODING]):
        join_groups(c, c.holders[c.decoding[index]])
    for leader in range(len(c.led)):
        for i in range(len(c.led)):
            if c.led[leader, GROUP] >> i & 1:
                c.led[i, LED_BY] = leader
    for back in range(c.common[NUM_DECODING]):
        r = c.decoding[c.common[NUM_DECODING] - 1 - back]
        i = c.led[lowest(c.holders[r]), LED_BY]
        s.request[r, SIBLING] = c.led[i, HEAD]
        c.led[i, HEAD] = r
        c.led[i, IN_GROUP] += 1
        c.led[i, LENGTHS] += s.request[r, INPUT] + s.request[r, OUTPUT]
    for i in range(len(c.led)):
        if c.led[i, GROUP]:
            form_batch(s, c, i)


@compiled
def form_batch(s: RunState, c: Common, i: int) -> None:
    """The requests of a group that its next steps decode: the first ones, as many as its instances take."""
    led = c.led[i]
    led[IN_STEP] = min(led[IN_GROUP], size(led[GROUP]) * s.instance[i, MOST_SEQUENCES])
    led[CONTEXT_TOKENS], led[SOONEST] = 0, s.request[led[HEAD], OUTPUT]
    r = led[HEAD]
    for _ in range(led[IN_STEP]):
        led[CONTEXT_TOKENS] += s.request[r, INPUT] + s.request[r, GENERATED]
        led[SOONEST] = min(led[SOONEST], s.request[r, OUTPUT] - s.request[r, GENERATED])
        r = s.request[r, SIBLING]


@compiled
def idle(c: Common) -> int:
    """The instances that neither step nor hold a group."""
    free = (1 << len(c.led)) - 1 & ~c.common[STEPPING]
    for i in range(len(c.led)):
        free &= ~c.led[i, GROUP]
    return int(free)


@compiled
def roomiest(s: RunState, members: int) -> int:
    """The instance of a set that has most room, the first of several."""
    best = lowest(members)
    for i in range(best + 1, len(s.instance)):
        if members >> i & 1 and s.instance[i, FREE] > s.instance[best, FREE]:
            best = i
    return best


@compiled
def hand_over(s: RunState, c: Common, r: int, i: int) -> bool:
    """Makes an instance the master of a request, which has room there for the tokens to come, as far as there is some.

    Whoever keeps blocks for the request goes on keeping one at least, so that a group only ever grows. False if nothing
    could be handed over.
    """
    left = min((s.request[r, OUTPUT] - s.request[r, GENERATED]) // s.run[BLOCK_TOKENS], s.instance[i, FREE])
    before = left
    for back in range(len(c.led)):
        other = len(c.led) - 1 - back
        moved = min(left, c.kept[r, other] - 1)
        if other != i and moved > 0:
            give_up(s, c, r, other, moved)
            keep(s, c, r, i, moved)
            left -= moved
    return bool(left < before)


@compiled
def scale_up(s: RunState, c: Common, i: int) -> bool:
    """Has the roomiest idle instance join a group that has too many sequences; False if it does not.

    It becomes the master of its share of the requests, those that came last; nothing moves.
    """
    free = idle(c)
    k = size(c.led[i, GROUP])
    if free == 0 or c.led[i, IN_GROUP] <= k * c.common[MASTERS]:
        return False
    goal, joined = roomiest(s, free), False
    note_tokens(s, c, i)
    r = c.led[i, HEAD]
    for index in range(c.led[i, IN_GROUP]):
        after = s.request[r, SIBLING]
        if index >= c.led[i, IN_GROUP] - c.led[i, IN_GROUP] // (k + 1) and hand_over(s, c, r, goal):
            joined = True
        r = after
    if joined:
        c.common[KNOWN] = 0
    else:
        form_batch(s, c, i)
    return joined


@compiled
def decode(s: RunState, c: Common, now_s: float) -> None:
    """Starts the next step of every group whose instances are all between steps."""
    i = 0
    form_groups(s, c)
    while i < len(c.led):
        members = c.led[i, GROUP]
        if members and members & c.common[STEPPING] == 0:
            if scale_up(s, c, i):
                form_groups(s, c)
                i = 0
                continue
            seconds = decode_s(s, c, size(members), c.led[i, IN_STEP], c.led[i, CONTEXT_TOKENS])
            start_step(s, c, members, seconds, now_s)
        i += 1
