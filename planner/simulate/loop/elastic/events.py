"""Event loop of elastic sequence parallelism: steps end, requests arrive, prefills and decode steps start.

At one moment steps end, then requests arrive, then prefills start, then groups that are between steps decode.
"""

import numpy as np

from planner.simulate.loop.arrivals import complete, next_arrival_s, next_arrived, order_key, reject
from planner.simulate.loop.elastic.fields import (
    BACK,
    CONTEXT_TOKENS,
    FRONT,
    HEAD,
    IN_STEP,
    KNOWN,
    NUM_DECODING,
    PROMPTS,
    SOONEST,
    STEP,
    STEPPING,
    STEPS_MADE,
)
from planner.simulate.loop.elastic.groups import decode, give_up, note_tokens
from planner.simulate.loop.elastic.prefills import prefill, whole_blocks
from planner.simulate.loop.elastic.program import common_of
from planner.simulate.loop.elastic.state import Common
from planner.simulate.loop.elastic.times import size
from planner.simulate.loop.fields import (
    BUSY,
    BUSY_PREFILL,
    CAPACITY,
    DECODE_TOKENS,
    DECODING,
    FIRST,
    GENERATED,
    INPUT,
    KEY,
    LAST_TOKEN,
    LIMIT,
    MOST_EVENTS,
    NONE,
    NOW,
    NUM_EVENTS,
    OUTPUT,
    PREFILL_STEP_COUNT,
    PREFILL_TOKENS,
    PREFILLED,
    SEQUENCE_SECONDS,
    SIBLING,
    START,
    STATE,
    STEP_COUNT,
    WAITING,
)
from planner.simulate.loop.gaps import note_gap
from planner.simulate.loop.heaps import first_to_end, goes_before, set_end
from planner.simulate.loop.program import compiled, entry, state_of
from planner.simulate.loop.state import RunState


@compiled
def finish(s: RunState, c: Common, r: int, now_s: float) -> None:
    """The last token of a request; what was kept for it is free."""
    c.common[KNOWN] = 0
    for i in range(len(s.instance)):
        if c.kept[r, i] > 0:
            give_up(s, c, r, i, c.kept[r, i])
    complete(s, r, now_s)


@compiled
def start_decoding(s: RunState, c: Common, r: int) -> None:
    """Puts a request among those that decode, by number."""
    s.request[r, STATE] = DECODING
    place = c.common[NUM_DECODING]
    c.common[NUM_DECODING] += 1
    c.common[KNOWN] = 0
    while place > 0 and c.decoding[place - 1] > r:
        c.decoding[place] = c.decoding[place - 1]
        place -= 1
    c.decoding[place] = r


@compiled
def end_prefill(s: RunState, c: Common, i: int, now_s: float) -> None:
    """Prompts are in the cache, and each has its first token."""
    r = c.led[i, PROMPTS]
    while r != NONE:
        after = s.request[r, SIBLING]
        s.request_s[r, PREFILLED] = s.request_s[r, FIRST] = s.request_s[r, LAST_TOKEN] = now_s
        s.request[r, GENERATED] = 1
        s.instance[i, PREFILL_TOKENS] += s.request[r, INPUT]
        if s.request[r, OUTPUT] == 1:
            finish(s, c, r, now_s)
        else:
            start_decoding(s, c, r)
        r = after
    c.led[i, PROMPTS] = NONE


@compiled
def note_decode(s: RunState, c: Common, i: int, now_s: float) -> None:
    """Each request of the step has a token, with a gap of its own since the one before."""
    r = c.led[i, HEAD]
    for _ in range(c.led[i, IN_STEP]):
        note_gap(s, r, now_s)
        r = s.request[r, SIBLING]


@compiled
def end_decode(s: RunState, c: Common, i: int, now_s: float) -> None:
    """Each request of the step has a token more; those that have all leave."""
    note_decode(s, c, i, now_s)
    c.led[i, STEPS_MADE] += 1
    c.led[i, CONTEXT_TOKENS] += c.led[i, IN_STEP]
    s.instance[i, DECODE_TOKENS] += c.led[i, IN_STEP]
    if c.led[i, STEPS_MADE] < c.led[i, SOONEST]:
        return
    note_tokens(s, c, i)
    r = c.led[i, HEAD]
    for _ in range(c.led[i, IN_STEP]):
        after = s.request[r, SIBLING]
        if s.request[r, GENERATED] == s.request[r, OUTPUT]:
            finish(s, c, r, now_s)
        r = after


@compiled
def note_step(s: RunState, c: Common, i: int, now_s: float) -> None:
    """Counts a step that ends, for each of its instances."""
    members, seconds, prefills = c.led[i, STEP], now_s - s.instance_s[i, START], c.led[i, PROMPTS] != NONE
    k = size(members)
    for member in range(len(s.instance)):
        if members >> member & 1:
            s.instance_s[member, BUSY] += seconds
            s.instance[member, STEP_COUNT] += 1
            if prefills:
                s.instance_s[member, BUSY_PREFILL] += seconds
                s.instance[member, PREFILL_STEP_COUNT] += 1
            else:
                s.instance_s[member, SEQUENCE_SECONDS] += c.led[i, IN_STEP] / k * seconds


@compiled
def end_step(s: RunState, c: Common, i: int, now_s: float) -> None:
    """A step is done."""
    note_step(s, c, i, now_s)
    c.common[STEPPING] &= ~c.led[i, STEP]
    c.led[i, STEP] = 0
    set_end(s, i, np.inf)
    if c.led[i, PROMPTS] != NONE:
        end_prefill(s, c, i, now_s)
    else:
        end_decode(s, c, i, now_s)


@compiled
def arrive(s: RunState, c: Common, r: int, now_s: float) -> None:
    """A request waits, or is rejected if all instances together could never hold it."""
    capacity = 0
    for i in range(len(s.instance)):
        capacity += s.instance[i, CAPACITY]
    if whole_blocks(s, r) > capacity:
        reject(s, r, now_s)
        return
    s.request[r, STATE] = WAITING
    s.request_s[r, KEY] = order_key(s, 0 * r, r, now_s)
    place = c.common[BACK]
    c.common[BACK] += 1
    while place > c.common[FRONT] and goes_before(s, r, c.waiting[place - 1]):
        c.waiting[place] = c.waiting[place - 1]
        place -= 1
    c.waiting[place] = r


@compiled
def arrive_all(s: RunState, c: Common, now_s: float) -> None:
    """Who arrives at this moment."""
    r = next_arrived(s, now_s)
    while r != NONE:
        arrive(s, c, r, now_s)
        r = next_arrived(s, now_s)


@entry
def run_elastic_loop(a: RunState, b: Common) -> None:
    """Runs until nothing more will happen, or to the limits of time and events."""
    s, c = state_of(*a), common_of(*b)
    while s.run[NUM_EVENTS] < s.run[MOST_EVENTS]:
        now_s = min(s.end_s[first_to_end(s)], next_arrival_s(s))
        if now_s > s.run_s[LIMIT] or now_s == np.inf:
            return
        s.run_s[NOW] = now_s
        s.run[NUM_EVENTS] += 1
        while s.end_s[first_to_end(s)] <= now_s:
            end_step(s, c, first_to_end(s), now_s)
        arrive_all(s, c, now_s)
        prefill(s, c, now_s)
        decode(s, c, now_s)
