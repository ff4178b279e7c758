"""Live migration of decoding requests from crowded instances to free ones (Llumnix, arXiv:2406.03243, section 4.2).

At every tick the instance of least freeness gives its shortest sequence to that of most, if the one is crowded and the
other has spare room. The cache is copied over the links of both while the request goes on decoding; it changes instance
at the first end of a step after that, if the new tokens fit there. A request that finishes or is preempted meanwhile
stays. One copy leaves an instance at a time.
"""

import numpy as np

from planner.simulate.loop.adapters import acquire, release
from planner.simulate.loop.fields import (
    ARRIVED,
    CAPACITY,
    COPIED,
    CROWDED,
    DECODING,
    DRAINING,
    FINISH,
    FREE,
    GENERATED,
    GOAL,
    GOAL_BLOCKS,
    HOME,
    INPUT,
    ITERATION,
    LIFE,
    LOAD_TOKENS,
    MIGRANT,
    MIGRANT_PREEMPTED,
    MIGRATION_COUNT,
    MOST_SEQUENCES,
    NONE,
    OPEN,
    OUTPUT,
    PEAK_BLOCKS,
    PERIOD,
    PREDICTED,
    PREEMPTED,
    PREFILL,
    READY,
    RESERVED,
    ROLE,
    SEQUENCES,
    SERVES,
    SIBLING,
    SPARE,
    STATE,
    STEPS,
    TICK,
    WATERMARK,
)
from planner.simulate.loop.links import transferred_s
from planner.simulate.loop.memory import blocks_of_context, give_back, take
from planner.simulate.loop.program import compiled
from planner.simulate.loop.routing import freeness, room_at
from planner.simulate.loop.scheduler.admission import running
from planner.simulate.loop.scheduler.queues import stop_decoding
from planner.simulate.loop.state import RunState


@compiled
def shortest(s: RunState, i: int) -> int:
    """The decoding request with the fewest tokens, the first of equals; NONE where there is none."""
    best, least = NONE, 0
    for place in range(s.instance[i, SEQUENCES]):
        r = s.batch[i, place]
        tokens = s.request[r, INPUT] + s.request[r, OUTPUT] - s.request[r, FINISH]
        if best == NONE or tokens < least or (tokens == least and r < best):
            best, least = r, tokens
    return int(best)


@compiled
def take_at(s: RunState, i: int, blocks: int, now_s: float) -> None:
    """Takes blocks within a stretch, whose own are otherwise counted when it ends."""
    take(s, i, blocks)
    used = s.instance[i, CAPACITY] - room_at(s, i, now_s)
    s.instance[i, PEAK_BLOCKS] = max(s.instance[i, PEAK_BLOCKS], used)


@compiled
def give_up_room(s: RunState, i: int, r: int, blocks: int, now_s: float) -> None:
    """Frees what was taken on an instance for a request that will not come there after all."""
    take_at(s, i, 0 * blocks, now_s)
    s.instance[i, FREE] += blocks
    s.instance[i, RESERVED] -= 1
    release(s, i, r)


@compiled
def start_copy(s: RunState, i: int, goal: int, now_s: float) -> None:
    """Begins to copy the cache of the shortest sequence, if the other instance has room for it.

    The decode steps of both must have been cut at this moment.
    """
    r, steps = shortest(s, i), s.instance[i, STEPS]
    ended = steps - 1 if steps > 0 and s.end_s[i] > now_s else steps
    if r == NONE or running(s, goal) >= s.instance[goal, MOST_SEQUENCES]:
        return
    done = s.request[r, OUTPUT] - (s.request[r, FINISH] - s.instance[i, ITERATION] - ended)
    tokens = s.request[r, INPUT] + done - 1
    blocks = blocks_of_context(s, goal, r, tokens)
    if blocks > room_at(s, goal, now_s) - s.instance[goal, WATERMARK] or not acquire(s, goal, r):
        return
    take_at(s, goal, blocks, now_s)
    s.instance[goal, RESERVED] += 1
    s.instance[i, MIGRANT], s.instance[i, GOAL], s.instance[i, GOAL_BLOCKS] = r, goal, blocks
    s.instance[i, MIGRANT_PREEMPTED] = s.request[r, PREEMPTED]
    s.instance_s[i, COPIED] = transferred_s(s, i, goal, tokens, now_s)


@compiled
def end_copy(s: RunState, i: int, now_s: float) -> None:
    """Moves the migrant of an instance between steps, if it still decodes there and its goal has room for it now.

    The decode steps of the goal, which has news, must have been cut.
    """
    r, goal, blocks = s.instance[i, MIGRANT], s.instance[i, GOAL], s.instance[i, GOAL_BLOCKS]
    s.instance[i, MIGRANT] = NONE
    same = s.request[r, PREEMPTED] == s.instance[i, MIGRANT_PREEMPTED]
    stays = s.request[r, STATE] != DECODING or s.request[r, HOME] != i or not same
    more = 0
    if not stays:
        done = s.request[r, OUTPUT] - (s.request[r, FINISH] - s.instance[i, ITERATION])
        tokens = s.request[r, INPUT] + done - 1
        more = blocks_of_context(s, goal, r, tokens) - blocks
        stays = more > room_at(s, goal, now_s)
    if stays:
        give_up_room(s, goal, r, blocks, now_s)
        return
    take_at(s, goal, more, now_s)
    stop_decoding(s, i, r)
    give_back(s, i, r, s.request[r, INPUT] + s.request[r, GENERATED] - 1)
    load = s.request[r, INPUT] + s.request[r, PREDICTED]
    s.outstanding[i] -= 1
    s.instance[i, LOAD_TOKENS] -= load
    s.outstanding[goal] += 1
    s.instance[goal, LOAD_TOKENS] += load
    s.instance[i, MIGRATION_COUNT] += 1
    s.request[r, HOME] = goal
    s.request[r, STATE] = READY
    s.request[r, SIBLING] = s.instance[goal, ARRIVED]
    s.instance[goal, ARRIVED] = r


@compiled
def relief(s: RunState, i: int, now_s: float) -> float:
    """The freeness that migration goes by: an instance that drains is to be emptied before all others."""
    return -np.inf if s.instance[i, LIFE] == DRAINING else freeness(s, i, now_s)


@compiled
def crowded_and_spare(s: RunState, now_s: float) -> tuple[int, int]:
    """The instance to relieve, and the one of its model to take from it; equal where there is nothing to do."""
    source, goal = 0, NONE
    least, most = np.inf, -np.inf
    for i in range(len(s.instance)):
        if s.instance[i, ROLE] != PREFILL and s.instance[i, LIFE] >= OPEN:
            room = relief(s, i, now_s)
            if room < least:
                source, least = i, room
    for i in range(len(s.instance)):
        same = s.instance[i, SERVES] == s.instance[source, SERVES] and s.instance[i, LIFE] == OPEN
        if s.instance[i, ROLE] != PREFILL and same:
            room = relief(s, i, now_s)
            if room > most:
                goal, most = i, room
    if least < s.run_s[CROWDED] and most > s.run_s[SPARE] and s.instance[source, MIGRANT] == NONE:
        return source, goal
    return source, source


@compiled
def next_copy(s: RunState, now_s: float) -> float:
    """When the next copy is complete, after now."""
    moment = np.inf
    for i in range(len(s.instance)):
        if s.instance[i, MIGRANT] != NONE and s.instance_s[i, COPIED] > now_s:
            moment = min(moment, s.instance_s[i, COPIED])
    return moment


@compiled
def next_tick(s: RunState, now_s: float) -> None:
    """Sets the tick after this one."""
    while s.run_s[TICK] <= now_s:
        s.run_s[TICK] += s.run_s[PERIOD]
