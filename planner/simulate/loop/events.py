"""The discrete-event loop: step ends, transfers, arrivals and step starts in order of time.

At one moment, first stretches and transfers end, then requests arrive, then instances between steps start their next
stretch, in the order of their numbers. A stretch of decode steps looks ahead; a request that comes meanwhile cuts it at
the next end of a step. A batch in a pipeline is a stretch of one step, which ends when it has left the last stage.
"""

import numpy as np

from planner.simulate.loop.arrivals import come, complete, hand_over, leave, next_arrival_s, next_arrived
from planner.simulate.loop.control import change, next_change
from planner.simulate.loop.fields import (
    ARRIVED,
    ASYNCHRONOUS,
    BUSY,
    BUSY_PREFILL,
    CHANGES,
    CONTEXT,
    COPIED,
    CUT,
    DECODE_TOKENS,
    DIRTY,
    DRAFT_BLOCKS,
    ENDING,
    ENDS,
    ENGINE,
    ENTRY,
    FINISH,
    FIRST,
    FIRST_AT_DECODE,
    FORMS,
    GENERATED,
    GOAL,
    HANDED,
    HOLDING,
    HOME,
    INPUT,
    ITERATION,
    KEY,
    LAST_TOKEN,
    LIMIT,
    LISTED,
    MIGRANT,
    MOST_EVENTS,
    NONE,
    NOW,
    NUM_DIRTY,
    NUM_ENDING,
    NUM_EVENTS,
    OUTPUT,
    PASS,
    PERIOD,
    PLACE,
    PREFILL,
    PREFILL_STEP_COUNT,
    PREFILL_TOKENS,
    PREFILLED,
    RANK,
    READY,
    ROLE,
    SEQUENCE_SECONDS,
    SEQUENCES,
    SIBLING,
    STAGES,
    STALLED,
    START,
    STATE,
    STEP_COUNT,
    STEP_TOKENS,
    STEPS,
    TICK,
    TRANSFERS,
    UNROUTED,
    WORKLOAD,
)
from planner.simulate.loop.gaps import note_gap, note_steps
from planner.simulate.loop.groups import schedule_group
from planner.simulate.loop.heaps import drop_batch, first_to_end, pop, set_end
from planner.simulate.loop.memory import give_back, growth_within, publish, take
from planner.simulate.loop.migration import crowded_and_spare, end_copy, next_copy, next_tick, start_copy
from planner.simulate.loop.program import compiled, entry, state_of
from planner.simulate.loop.scheduler.queues import start_decoding
from planner.simulate.loop.speculation import accept_drafts
from planner.simulate.loop.state import RunState
from planner.simulate.loop.stretches import interrupt, mark, wake
from planner.simulate.loop.tiers.nested import keep_in_tiers


@compiled
def finish(s: RunState, i: int, r: int, now_s: float) -> None:
    """The last token of a request; its blocks are freed."""
    engine = s.instance[i, ENGINE]
    if s.instance[i, ASYNCHRONOUS] == 1:
        s.request[r, STATE] = ENDING
        note_ending(s, i, r)
        return
    give_back(s, engine, r, s.request[r, INPUT] + s.request[r, OUTPUT] - 1)
    leave(s, engine, r)
    complete(s, r, now_s)


@compiled
def note_ending(s: RunState, i: int, r: int) -> None:
    """A request is in the last step that it has here, while the one after that is formed."""
    s.ending[i, s.instance[i, NUM_ENDING]] = r
    s.instance[i, NUM_ENDING] += 1
    s.instance[i, HOLDING] += 1


@compiled
def end_requests(s: RunState, i: int, now_s: float) -> None:
    """The last step that requests have here ends, after the one that follows it was formed."""
    for place in range(s.instance[i, NUM_ENDING]):
        r = s.ending[i, place]
        if s.request[r, STATE] == HANDED:
            hand_over(s, r, now_s)
            continue
        if s.request[r, STATE] == ENDING:
            give_back(s, i, r, s.request[r, INPUT] + s.request[r, OUTPUT] - 1)
        leave(s, i, r)
        complete(s, r, now_s)
    s.instance[i, NUM_ENDING] = s.instance[i, HOLDING] = 0


@compiled
def end_prefill(s: RunState, i: int, r: int, now_s: float) -> None:
    """The prompt of a request is in the cache, and a token is generated."""
    engine = s.instance[i, ENGINE]
    publish(s, engine, r)
    keep_in_tiers(s, r)
    s.request[r, GENERATED] += 1
    last = s.request[r, GENERATED] == s.request[r, OUTPUT]
    handed = s.instance[engine, ROLE] == PREFILL and not last
    if s.request_s[r, PREFILLED] < 0.0:
        s.request_s[r, PREFILLED] = now_s
    if s.request_s[r, FIRST] >= 0.0:
        note_gap(s, r, now_s)
    elif not handed or s.run[FIRST_AT_DECODE] == 0:
        s.request_s[r, FIRST] = s.request_s[r, LAST_TOKEN] = now_s
    if last:
        finish(s, i, r, now_s)
    elif handed and s.instance[i, ASYNCHRONOUS] == 1:
        s.request[r, STATE] = HANDED
        note_ending(s, i, r)
    elif handed:
        hand_over(s, r, now_s)
    else:
        start_decoding(s, i, r)


@compiled
def note_stretch(s: RunState, i: int, now_s: float) -> None:
    """Counts the stretch that ends; of one in a pipeline the time in its stages, not that between them."""
    if s.instance[i, STEPS] == 0:
        return
    steps, seconds = s.instance[i, STEPS], now_s - s.instance_s[i, START]
    if s.instance[i, STAGES] > 1:
        seconds = s.instance_s[i, PASS]
    s.instance_s[i, BUSY] += seconds
    s.instance_s[i, SEQUENCE_SECONDS] += s.instance[i, SEQUENCES] * seconds
    s.instance[i, STEP_COUNT] += steps
    if s.instance[i, LISTED] > 0:
        s.instance_s[i, BUSY_PREFILL] += seconds
        s.instance[i, PREFILL_STEP_COUNT] += 1
        s.instance[i, PREFILL_TOKENS] += s.instance[i, STEP_TOKENS]


@compiled
def end_stretch(s: RunState, i: int, now_s: float) -> None:
    """The steps of a stretch are done: tokens and blocks are counted, requests finish or go on.

    An instance that forms steps ahead counts them when the last one starts, to form the next.
    """
    if s.instance[i, ASYNCHRONOUS] == 1:
        if s.instance[i, NUM_ENDING] > 0:
            end_requests(s, i, now_s)
        if s.instance_s[i, FORMS] > now_s:
            wake(s, i)
            return
        now_s = s.instance_s[i, ENDS]
    note_stretch(s, i, now_s)
    sequences, steps = s.instance[i, SEQUENCES], s.instance[i, STEPS]
    s.instance[i, STEPS] = 0
    set_end(s, i, np.inf)
    if sequences > 0 and s.instance[i, STALLED] == 0:
        take(s, s.instance[i, ENGINE], growth_within(s, i, steps))
        note_steps(s, i, steps, now_s)
        s.instance[i, ITERATION] += steps
        s.instance[i, CONTEXT] += sequences * steps
        s.instance[i, DECODE_TOKENS] += sequences * steps
        if s.instance[i, DRAFT_BLOCKS] != NONE:
            accept_drafts(s, i)
        end_decodes(s, i, now_s)
    prompts = s.instance[i, LISTED] - s.instance[i, CUT]
    s.instance[i, LISTED] = s.instance[i, CUT] = 0
    for place in range(prompts):
        end_prefill(s, i, s.listed[i, place], now_s)
    move(s, i, now_s)
    mark(s, i)


@compiled
def end_decodes(s: RunState, i: int, now_s: float) -> None:
    """Requests that have all their tokens leave the decoding batch."""
    while s.instance[i, SEQUENCES] > 0:
        r = s.batch[i, 0]
        if s.request[r, FINISH] > s.instance[i, ITERATION]:
            return
        s.instance[i, CONTEXT] -= s.request[r, INPUT] + s.request[r, OUTPUT]
        s.residue[i, (s.request[r, INPUT] + s.request[r, OUTPUT] - s.request[r, FINISH] - 1) % s.residue.shape[1]] -= 1
        s.mates[i, s.request[r, WORKLOAD]] -= 1
        drop_batch(s, i, s.request[r, PLACE])
        finish(s, i, r, now_s)


@compiled
def end_transfer(s: RunState, r: int, now_s: float) -> None:
    """A cache has arrived: the blocks at its source are free, the request joins the next step."""
    source, i = s.request[r, ENTRY], s.request[r, HOME]
    give_back(s, source, r, s.request[r, INPUT] + s.request[r, GENERATED] - 1)
    leave(s, source, r)
    s.request[r, STATE] = READY
    s.request_s[r, KEY] = s.request_s[r, RANK]
    if s.request_s[r, FIRST] < 0.0:
        s.request_s[r, FIRST] = s.request_s[r, LAST_TOKEN] = now_s
    s.request[r, SIBLING] = s.instance[i, ARRIVED]
    s.instance[i, ARRIVED] = r
    interrupt(s, source, now_s)
    interrupt(s, i, now_s)


@compiled
def move(s: RunState, i: int, now_s: float) -> None:
    """A copied request changes instance, where its source is between steps; the steps of the goal are cut."""
    if s.instance[i, MIGRANT] != NONE and s.instance_s[i, COPIED] <= now_s:
        interrupt(s, s.instance[i, GOAL], now_s)
        end_copy(s, i, now_s)


@compiled
def migrate(s: RunState, now_s: float) -> None:
    """What migration has to do at this moment: copies that are complete, and a tick."""
    for i in range(len(s.instance)):
        if s.instance[i, MIGRANT] != NONE and s.instance_s[i, COPIED] <= now_s:
            if s.instance[i, STEPS] == 0:
                move(s, i, now_s)
            interrupt(s, i, now_s)
    if s.run_s[TICK] <= now_s:
        next_tick(s, now_s)
        source, goal = crowded_and_spare(s, now_s)
        if source != goal:
            interrupt(s, source, now_s)
            interrupt(s, goal, now_s)
            start_copy(s, source, goal, now_s)


@compiled
def next_moment(s: RunState) -> float:
    """When something happens next; `inf` if nothing will."""
    moment = min(s.end_s[first_to_end(s)], next_arrival_s(s))
    if s.run[TRANSFERS] != NONE:
        moment = min(moment, s.request_s[s.run[TRANSFERS], KEY])
    if s.run_s[PERIOD] < np.inf and moment < np.inf:
        moment = min(moment, s.run_s[TICK], next_copy(s, s.run_s[NOW]))
    if s.run[CHANGES] == 1 and (moment < np.inf or s.run[UNROUTED] != NONE):
        moment = next_change(s, moment)
    return float(moment)


@compiled
def end_all(s: RunState, now_s: float) -> None:
    """What ends at this moment."""
    while s.end_s[first_to_end(s)] <= now_s:
        end_stretch(s, first_to_end(s), now_s)
    while s.run[TRANSFERS] != NONE and s.request_s[s.run[TRANSFERS], KEY] <= now_s:
        r = s.run[TRANSFERS]
        s.run[TRANSFERS] = pop(s, r)
        end_transfer(s, r, now_s)


@compiled
def arrive_all(s: RunState, now_s: float) -> None:
    """Who arrives at this moment."""
    r = next_arrived(s, now_s)
    while r != NONE:
        come(s, r, now_s)
        r = next_arrived(s, now_s)


@compiled
def schedule_all(s: RunState, now_s: float) -> None:
    """Who starts at this moment, in the order of numbers."""
    marked = s.run[NUM_DIRTY]
    s.run[NUM_DIRTY] = 0
    for index in range(1, marked):
        i, place = s.dirty[index], index
        while place > 0 and s.dirty[place - 1] > i:
            s.dirty[place] = s.dirty[place - 1]
            place -= 1
        s.dirty[place] = i
    for index in range(marked):
        s.instance[s.dirty[index], DIRTY] = 0
        schedule_group(s, s.dirty[index], now_s)


@entry
def run_loop(a: RunState) -> None:
    """Runs until nothing more will happen, or to the limits of time and events."""
    s = state_of(*a)
    while s.run[NUM_EVENTS] < s.run[MOST_EVENTS]:
        now_s = next_moment(s)
        if now_s > s.run_s[LIMIT] or now_s == np.inf:
            return
        s.run_s[NOW] = now_s
        s.run[NUM_EVENTS] += 1
        end_all(s, now_s)
        arrive_all(s, now_s)
        if s.run_s[PERIOD] < np.inf:
            migrate(s, now_s)
        end_all(s, now_s)
        if s.run[CHANGES] == 1:
            change(s, now_s)
        schedule_all(s, now_s)
