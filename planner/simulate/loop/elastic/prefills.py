"""Prefill scheduling of elastic sequence parallelism: waiting requests, idle instances, and borrowed ones."""

import numpy as np

from planner.arrays import Ints
from planner.simulate.loop.elastic.fields import (
    BACK,
    BORROWS,
    FRONT,
    GROUP,
    HEAD,
    IN_GROUP,
    IN_STEP,
    LENGTHS,
    MOST_JOBS,
    PROMPTS,
    STEPPING,
    STEPS_MADE,
)
from planner.simulate.loop.elastic.groups import form_groups, idle, keep, roomiest, start_step
from planner.simulate.loop.elastic.state import Common
from planner.simulate.loop.elastic.times import believed_s, lowest, prefill_s, size
from planner.simulate.loop.fields import (
    DEGREE,
    ENTRY,
    FREE,
    GENERATED,
    HOME,
    INPUT,
    NONE,
    OUTPUT,
    PREFILLING,
    SIBLING,
    STARTED,
    STATE,
    TOKEN_BUDGET,
)
from planner.simulate.loop.memory import blocks_of
from planner.simulate.loop.program import compiled, owning
from planner.simulate.loop.state import RunState
from planner.solvers.schedules.shared_batches import share_batches

cut = owning(share_batches)


@compiled
def whole_blocks(s: RunState, r: int) -> int:
    """Blocks of a request from its first to its last token."""
    return blocks_of(s, s.request[r, INPUT] + s.request[r, OUTPUT])


@compiled
def room_of(s: RunState, members: int) -> int:
    """Blocks that a set of instances has free."""
    room = 0
    for i in range(len(s.instance)):
        if members >> i & 1:
            room += s.instance[i, FREE]
    return room


@compiled
def taken(s: RunState, c: Common, members: int) -> int:
    """How many of the waiting requests a set of instances has room and tokens for, in their order."""
    room, tokens = room_of(s, members), s.instance[0, TOKEN_BUDGET] * size(members)
    front = c.common[FRONT]
    most = min(c.common[BACK] - front, MOST_JOBS) if members else 0
    for index in range(most):
        r = c.waiting[front + index]
        if whole_blocks(s, r) > room or (index > 0 and s.request[r, INPUT] > tokens):
            return index
        room -= whole_blocks(s, r)
        tokens -= s.request[r, INPUT]
    return int(most)


@compiled
def stands_still(s: RunState, c: Common, i: int) -> float:
    """What the answers of a group lose by a step: one over the tokens that they have, of all of them."""
    lost, r = 0.0, c.led[i, HEAD]
    for index in range(c.led[i, IN_GROUP]):
        done = s.request[r, GENERATED] + (c.led[i, STEPS_MADE] if index < c.led[i, IN_STEP] else 0)
        lost += 1.0 / done
        r = s.request[r, SIBLING]
    return lost


@compiled
def saved(s: RunState, c: Common, count: int, before: int, after: int) -> float:
    """How much less the first waiting requests wait on more instances, for each token; in times of their prefill."""
    tokens, squares, weight = 0.0, 0.0, 0.0
    for index in range(count):
        length = float(s.request[c.waiting[c.common[FRONT] + index], INPUT])
        tokens += length
        squares += length * length
        weight += 1.0 / length
    slow, fast = believed_s(c, before, tokens, squares), believed_s(c, after, tokens, squares)
    return (slow - fast) / fast * weight if fast > 0.0 else 0.0


@compiled
def next_group(c: Common, seen: int) -> int:
    """The leader of the group between steps, but those seen, that holds fewest tokens; NONE if there is no other."""
    best = NONE
    for i in range(len(c.led)):
        between = c.led[i, GROUP] and c.led[i, GROUP] & (c.common[STEPPING] | seen) == 0
        if between and (best == NONE or c.led[i, LENGTHS] < c.led[best, LENGTHS]):
            best = i
    return best


@compiled
def chosen_instances(s: RunState, c: Common) -> int:
    """The idle instances, and those of groups that are worth it."""
    form_groups(s, c)
    chosen = idle(c)
    if c.common[BORROWS] == 0 and chosen:
        return chosen
    reach, seen, still = chosen, 0, 0.0
    while True:
        i = next_group(c, seen)
        if i == NONE:
            return chosen
        seen |= c.led[i, GROUP]
        reach |= c.led[i, GROUP]
        still += stands_still(s, c, i)
        count = taken(s, c, reach)
        if count == 0:
            continue
        if taken(s, c, chosen) == 0 or saved(s, c, count, size(chosen), size(reach)) > still:
            chosen, still = reach, 0.0


@owning
def by_length(s: RunState, c: Common, count: int) -> Ints:
    """The first waiting requests, longest prompts first."""
    order = np.empty(count, np.int64)
    for index in range(count):
        r, place = c.waiting[c.common[FRONT] + index], index
        while place > 0 and s.request[order[place - 1], INPUT] < s.request[r, INPUT]:
            order[place] = order[place - 1]
            place -= 1
        order[place] = r
    return order


@owning
def in_batches(s: RunState, c: Common, order: Ints, k: int, batch_B2: Ints) -> int:
    """Cuts requests into batches that share k instances, so that they wait least for each token of their prompts."""
    jobs = len(order)
    cost_KJJ = np.full((k + 1, jobs + 1, jobs + 1), np.inf)
    for i in range(jobs):
        tokens, squares, weight = 0.0, 0.0, 0.0
        for j in range(i, jobs):
            length = float(s.request[order[j], INPUT])
            tokens += length
            squares += length * length
            weight += 1.0 / length
            for m in range(1, k + 1):
                cost_KJJ[m, i, j + 1] = believed_s(c, m, tokens, squares) * weight
    return int(cut(cost_KJJ, jobs, k, batch_B2)[0])


@compiled
def roomiest_of(s: RunState, members: int, k: int) -> int:
    """The k instances of a set that have most room."""
    chosen = 0
    for _ in range(k):
        chosen |= 1 << roomiest(s, members & ~chosen)
    return int(chosen)


@compiled
def batches_fit(s: RunState, order: Ints, batch_B2: Ints, count: int, members: int) -> bool:
    """Whether each batch has room on its instances, the roomiest that those before it leave."""
    first = 0
    for b in range(count):
        chosen, blocks = roomiest_of(s, members, batch_B2[b, 1]), 0
        for index in range(first, batch_B2[b, 0]):
            blocks += whole_blocks(s, order[index])
        if blocks > room_of(s, chosen):
            return False
        members &= ~chosen
        first = batch_B2[b, 0]
    return True


@compiled
def fewest(s: RunState, order: Ints, members: int) -> int:
    """The fewest of the instances that have room for all of the requests, those of most room."""
    blocks, k = 0, 1
    for r in order:
        blocks += whole_blocks(s, r)
    while room_of(s, roomiest_of(s, members, k)) < blocks:
        k += 1
    return roomiest_of(s, members, k)


@compiled
def place_request(s: RunState, c: Common, r: int, members: int) -> None:
    """Keeps room for a whole request on as few of the instances as have it."""
    left = whole_blocks(s, r)
    s.request[r, HOME] = NONE
    while left > 0:
        i = roomiest(s, members)
        blocks = min(left, s.instance[i, FREE])
        if s.request[r, HOME] == NONE:
            s.request[r, HOME] = i
        keep(s, c, r, i, blocks)
        left -= blocks


@compiled
def start_prefill(s: RunState, c: Common, order: Ints, members: int, now_s: float) -> None:
    """A step of all the instances that prefills the requests."""
    tokens, pairs, first = 0, 0.0, NONE
    for back in range(len(order)):
        r = order[len(order) - 1 - back]
        length = s.request[r, INPUT]
        tokens += length
        pairs += length * (length + 1.0) / 2.0
        s.request[r, STATE], s.request[r, ENTRY], s.request[r, SIBLING] = PREFILLING, lowest(members), first
        s.request_s[r, STARTED] = now_s
        s.request[r, DEGREE] = size(members)
        first = r
    few = fewest(s, order, members)
    for r in order:
        place_request(s, c, r, few)
    c.led[lowest(members), PROMPTS] = first
    start_step(s, c, members, prefill_s(s, c, size(members), tokens, pairs / tokens), now_s)


@owning
def prefill(s: RunState, c: Common, now_s: float) -> None:
    """Takes requests that wait as long as instances are left for them."""
    batch_B2 = np.empty((MOST_JOBS, 2), np.int64)
    while c.common[FRONT] < c.common[BACK]:
        members = chosen_instances(s, c)
        count = taken(s, c, members)
        if count == 0:
            return
        order, left, first = by_length(s, c, count), members, 0
        c.common[FRONT] += count
        batches = in_batches(s, c, order, size(members), batch_B2)
        if not batches_fit(s, order, batch_B2, batches, members):
            batches, batch_B2[0, 0], batch_B2[0, 1] = 1, count, size(members)
        for b in range(batches):
            chosen = roomiest_of(s, left, batch_B2[b, 1])
            left &= ~chosen
            start_prefill(s, c, order[first : batch_B2[b, 0]], chosen, now_s)
            first = batch_B2[b, 0]
        if left == 0:
            return
