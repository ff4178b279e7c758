"""Lifecycle of instances: start, drain, failure, and change of role.

Instances that step together change together. What a failed instance had in its cache, was to have, or kept for a cache
still to move is sent again and computed again; the step that ran is lost. An instance that drains takes no more
requests; when those that it has are gone it is off, or of its next role.
"""

import numpy as np

from planner.simulate.loop.arrivals import arrive, come, leave
from planner.simulate.loop.fields import (
    ARRIVED,
    BUSY,
    CACHES,
    CAPACITY,
    CONTEXT,
    CUT,
    DECODE,
    DECODE_TOKENS,
    DECODING,
    DRAFT_BLOCKS,
    DRAINING,
    DUE,
    ENGINE,
    ENTRY,
    EVICTABLE,
    FINISH,
    FREE,
    GENERATED,
    GOAL,
    GOAL_BLOCKS,
    HANDED,
    HOME,
    HOST_CAPACITY,
    HOST_FREE,
    INPUT,
    ITERATION,
    LAST_USE,
    LEADER,
    LIFE,
    LISTED,
    LOAD_TOKENS,
    LOADED,
    LOST,
    MEMBERS,
    MIGRANT,
    MOVING,
    NEWEST,
    NEXT_ROLE,
    NONE,
    NUM_DRAINING,
    OFF,
    OLDEST,
    OPEN,
    OPENS,
    OUTPUT,
    PARTIAL,
    PASS,
    PENALTY,
    PREEMPTED,
    PREEMPTION_COUNT,
    PREFILL,
    QUEUE,
    QUEUED,
    QUEUED_BLOCKS,
    RECEIVED,
    REFERENCES,
    RESERVED,
    RESERVES,
    RESERVING,
    ROLE,
    SENT,
    SEQUENCE_SECONDS,
    SEQUENCES,
    STAGES,
    STALLED,
    START,
    STARTING,
    STATE,
    STEP_COUNT,
    STEPS,
    SWAPPED,
    TO_DECODE,
    TO_FAIL,
    TO_PREFILL,
    TO_START,
    TRANSFERS,
    UNROUTED,
    UP_SECONDS,
    UP_SINCE,
    USERS,
    WAITING,
)
from planner.simulate.loop.gaps import clear_batch, leave_batch, note_steps
from planner.simulate.loop.heaps import pop, push, set_end
from planner.simulate.loop.memory import blocks_of, blocks_of_context, give_back
from planner.simulate.loop.migration import give_up_room, take_at
from planner.simulate.loop.program import compiled
from planner.simulate.loop.state import RunState
from planner.simulate.loop.steps import decode_steps
from planner.simulate.loop.stretches import batch_row, interrupt


@compiled
def switch_off(s: RunState, i: int, now_s: float) -> None:
    """The time for which it was up is counted."""
    s.instance[i, LIFE] = OFF
    s.instance_s[i, OPENS] = np.inf
    s.instance_s[i, UP_SECONDS] += now_s - s.instance_s[i, UP_SINCE]


@compiled
def stop(s: RunState, i: int, now_s: float) -> None:
    """Ends the stretch of an instance with the steps that it has made by now."""
    interrupt(s, i, now_s)
    steps, seconds = s.instance[i, STEPS], now_s - s.instance_s[i, START]
    if steps == 0:
        return
    if s.instance[i, STAGES] > 1:
        seconds = min(seconds, s.instance_s[i, PASS])
    else:
        take_at(s, i, 0 * steps, now_s)
    if s.end_s[i] > now_s:
        steps -= 1
    s.instance_s[i, BUSY] += seconds
    s.instance_s[i, SEQUENCE_SECONDS] += s.instance[i, SEQUENCES] * seconds
    s.instance[i, STEP_COUNT] += steps
    if s.instance[i, STALLED] == 0:
        if steps > 0 and s.instance[i, SEQUENCES] > 0:
            note_steps(s, i, steps, decode_steps(s, i, steps, np.inf)[2])
        s.instance[i, ITERATION] += steps
        s.instance[i, DECODE_TOKENS] += s.instance[i, SEQUENCES] * steps


@compiled
def lose(s: RunState, i: int, r: int, now_s: float) -> None:
    """Takes a request off the other instance that it has to do with, if any."""
    state, source, home = s.request[r, STATE], s.request[r, ENTRY], s.request[r, HOME]
    tokens = s.request[r, INPUT] + s.request[r, GENERATED]
    kept_back = state == HANDED and source == home
    if state == DECODING:
        s.request[r, GENERATED] = s.request[r, OUTPUT] - (s.request[r, FINISH] - s.instance[home, ITERATION])
        leave_batch(s, home, r)
    elif HANDED <= state <= MOVING:
        if source != i:
            give_back(s, source, r, tokens - 1)
            leave(s, source, r)
            interrupt(s, source, now_s)
        elif not kept_back:
            leave(s, home, r)
            interrupt(s, home, now_s)
            if state == MOVING:
                give_up_room(s, home, r, blocks_of_context(s, home, r, tokens - 1), now_s)
            else:
                s.instance[home, QUEUED] -= 1
                s.instance[home, QUEUED_BLOCKS] -= blocks_of(s, tokens)
    s.request[r, STATE] = WAITING if kept_back else LOST
    s.request[r, HOME] = NONE
    s.request[r, PREEMPTED] += 1
    s.request_s[r, DUE] = -1.0
    s.instance[i, PREEMPTION_COUNT] += 1


@compiled
def without_lost(s: RunState, root: int) -> int:
    """A queue without the requests that are lost."""
    kept = NONE
    while root != NONE:
        r = root
        root = pop(s, r)
        if s.request[r, STATE] != LOST:
            kept = push(s, kept, r)
    return kept


@compiled
def clear(s: RunState, i: int, now_s: float) -> None:
    """An instance, or a further batch of a pipeline, without requests or caches."""
    row = s.instance[i]
    row[SEQUENCES] = row[QUEUED] = row[QUEUED_BLOCKS] = row[RESERVED] = row[CONTEXT] = row[STEPS] = 0
    row[LISTED] = row[CUT] = 0
    clear_batch(s, i)
    s.outstanding[i] = row[LOAD_TOKENS] = row[EVICTABLE] = row[LOADED] = 0
    row[QUEUE] = row[PARTIAL] = row[ARRIVED] = row[OLDEST] = row[NEWEST] = row[DRAFT_BLOCKS] = NONE
    row[FREE], row[HOST_FREE] = row[CAPACITY], row[HOST_CAPACITY]
    s.instance_s[i, PENALTY] = 0.0
    s.instance_s[i, SENT] = s.instance_s[i, RECEIVED] = now_s
    for stage in range(s.stage_free_s.shape[1]):
        s.stage_free_s[i, stage] = now_s
    set_end(s, i, np.inf)
    for slot in range(s.residue.shape[1]):
        s.residue[i, slot] = 0
    for adapter in range(s.adapters.shape[1]):
        s.adapters[i, adapter, USERS] = 0
        s.adapters[i, adapter, LAST_USE] = NONE
    if s.run[CACHES] == 1 and i < len(s.cached):
        for block in range(s.cached.shape[1]):
            s.cached[i, block, REFERENCES] = NONE


@compiled
def touches(s: RunState, i: int, r: int) -> bool:
    """Whether the cache of a request is, is to be, or has just been made on an instance."""
    state = s.request[r, STATE]
    if HANDED <= state <= MOVING:
        return bool(s.request[r, HOME] == i or s.request[r, ENTRY] == i)
    home = s.request[r, HOME]
    return bool(WAITING <= state <= SWAPPED and home != NONE and s.instance[home, ENGINE] == i)


@compiled
def fail(s: RunState, i: int, now_s: float) -> None:
    """An instance is gone with all that it holds; requests whose caches are lost are marked so."""
    batches = s.instance[i, STAGES]
    for number in range(batches):
        stop(s, batch_row(s, i, number), now_s)
    for r in range(len(s.request)):
        if touches(s, i, r):
            lose(s, i, r, now_s)
    s.run[TRANSFERS] = without_lost(s, s.run[TRANSFERS])
    for other in range(len(s.instance)):
        if other != i and s.instance[other, QUEUE] != NONE:
            s.instance[other, QUEUE] = without_lost(s, s.instance[other, QUEUE])
        if s.instance[other, MIGRANT] != NONE and (other == i or s.instance[other, GOAL] == i):
            if other == i:
                goal = s.instance[i, GOAL]
                interrupt(s, goal, now_s)
                give_up_room(s, goal, s.instance[i, MIGRANT], s.instance[i, GOAL_BLOCKS], now_s)
            s.instance[other, MIGRANT] = NONE
    for number in range(batches):
        clear(s, batch_row(s, i, number), now_s)
    switch_off(s, i, now_s)


@compiled
def send_again(s: RunState, now_s: float) -> None:
    """Lost requests come to the router once more, in their order."""
    for r in range(len(s.request)):
        if s.request[r, STATE] == LOST:
            s.request[r, STATE] = WAITING
            arrive(s, r, now_s)


@compiled
def start(s: RunState, i: int, now_s: float, opens_s: float) -> None:
    """Begins to start an instance that is off."""
    s.instance[i, LIFE] = STARTING
    s.instance_s[i, UP_SINCE] = now_s
    s.instance_s[i, OPENS] = opens_s


@compiled
def drain(s: RunState, i: int) -> None:
    """An open instance takes no more requests, and its next role, or is off for NONE, when it has none left."""
    s.instance[i, LIFE] = DRAINING
    s.run[NUM_DRAINING] += 1


@compiled
def change_one(s: RunState, i: int, how: int, now_s: float) -> None:
    """A change that is known beforehand; one that does not apply to the state of the instance is none."""
    life = s.instance[i, LIFE]
    if how == TO_START and life == OFF:
        start(s, i, now_s, now_s)
    elif how == TO_START and life == DRAINING:
        s.instance[i, LIFE] = OPEN
        s.run[NUM_DRAINING] -= 1
    elif how == TO_FAIL and life != OFF:
        s.run[NUM_DRAINING] -= 1 if life == DRAINING else 0
        fail(s, i, now_s)
    elif how > TO_FAIL and life == OPEN:
        s.instance[i, NEXT_ROLE] = NONE
        if how == TO_PREFILL:
            s.instance[i, NEXT_ROLE] = PREFILL
        elif how == TO_DECODE:
            s.instance[i, NEXT_ROLE] = DECODE
        drain(s, i)


@compiled
def settle(s: RunState, now_s: float) -> None:
    """Instances that have started open; those that have drained are off or of their next role."""
    for i in range(len(s.instance)):
        if s.instance[i, LIFE] == STARTING and s.instance_s[i, OPENS] <= now_s:
            s.instance[i, LIFE] = OPEN
            s.instance_s[i, OPENS] = np.inf
    if s.run[NUM_DRAINING] > 0:
        for leader in range(len(s.instance)):
            settle_group(s, leader, now_s)


@compiled
def settle_group(s: RunState, leader: int, now_s: float) -> None:
    """The instances that step with a leader, if all of them have drained."""
    end = leader + s.instance[leader, MEMBERS]
    if s.instance[leader, LEADER] != leader:
        return
    for i in range(leader, end):
        if s.instance[i, LIFE] != DRAINING or s.outstanding[i] > 0 or s.instance[i, RESERVED] > 0:
            return
    for i in range(leader, end):
        role = s.instance[i, NEXT_ROLE]
        s.run[NUM_DRAINING] -= 1
        if role == NONE:
            switch_off(s, i, now_s)
        else:
            s.instance[i, ROLE] = role
            for number in range(s.instance[i, STAGES]):
                s.instance[batch_row(s, i, number), RESERVES] = s.instance[i, RESERVING] if role != PREFILL else 0
            s.instance[i, LIFE] = OPEN


@compiled
def release_waiting(s: RunState, now_s: float) -> None:
    """Requests kept back look for an open instance again, in their order."""
    root = s.run[UNROUTED]
    s.run[UNROUTED] = NONE
    while root != NONE:
        r = root
        root = pop(s, r)
        come(s, r, now_s)
