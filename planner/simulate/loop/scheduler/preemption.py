"""Preemption: requests that run give their blocks back, the last of them first, and wait again.

`i` is the row of the running batch that gets its next step, `engine` that of the instance whose it is: the same, but
for the further batches of a pipeline.
"""

from planner.simulate.loop.fields import (
    CUT,
    DONE,
    DUE,
    ENDING,
    ENGINE,
    GENERATED,
    HOLDING,
    HOME,
    HOST_FREE,
    INPUT,
    ITERATION,
    LEFT,
    LISTED,
    NONE,
    NUM_ENDING,
    OUTPUT,
    PARTIAL,
    PENALTY,
    PREEMPTED,
    PREEMPTION_COUNT,
    SEQUENCES,
    STAGES,
    STATE,
    STEPS,
    SWAP_RATE,
    SWAPPED,
    SWAPS,
    WAITING,
)
from planner.simulate.loop.heaps import goes_before
from planner.simulate.loop.memory import (
    blocks_of,
    give_up,
    growth,
    room,
)
from planner.simulate.loop.program import compiled
from planner.simulate.loop.scheduler.queues import enqueue, stop_decoding
from planner.simulate.loop.state import RunState
from planner.simulate.loop.stretches import batch_row


@compiled
def partial_at_rest(s: RunState, engine: int) -> int:
    """The request whose prefill is cut, unless a part of it is in flight; NONE if there is none."""
    r = s.instance[engine, PARTIAL]
    if s.instance[engine, STAGES] > 1 and r != NONE:
        for number in range(s.instance[engine, STAGES]):
            row = batch_row(s, engine, number)
            cut = s.instance[row, STEPS] > 0 and s.instance[row, CUT] == 1
            if cut and s.listed[row, s.instance[row, LISTED] - 1] == r:
                return NONE
    return int(r)


@compiled
def last_running(s: RunState, i: int) -> int:
    """The running request that the queue's order puts last, but for those in flight; NONE if nothing runs."""
    last = partial_at_rest(s, s.instance[i, ENGINE])
    for place in range(s.instance[i, SEQUENCES]):
        r = s.batch[i, place]
        if last == NONE or goes_before(s, last, r):
            last = r
    for place in range(s.instance[i, NUM_ENDING]):
        r = s.ending[i, place]
        if s.request[r, STATE] == ENDING and (last == NONE or goes_before(s, last, r)):
            last = r
    return int(last)


@compiled
def preempt(s: RunState, i: int, r: int, now_s: float) -> None:
    """Takes a running request back into the queue: to host memory where that has room, else to be computed again.

    One that is in its last step has its answer when that ends, and gives up its blocks before.
    """
    engine = s.instance[i, ENGINE]
    s.request[r, PREEMPTED] += 1
    s.instance[engine, PREEMPTION_COUNT] += 1
    if s.request[r, STATE] == ENDING:
        s.request[r, STATE] = WAITING
        s.instance[i, HOLDING] -= 1
        give_up(s, engine, r, s.request[r, INPUT] + s.request[r, OUTPUT] - 1)
        return
    if r == s.instance[engine, PARTIAL]:
        s.instance[engine, PARTIAL] = NONE
        s.request[r, STATE] = WAITING
        tokens = s.request[r, DONE]
    else:
        stop_decoding(s, i, r)
        if s.request_s[r, DUE] >= 0.0:
            s.request_s[r, LEFT] = max(s.request_s[r, DUE] - now_s, 0.0)
        tokens = s.request[r, INPUT] + s.request[r, GENERATED] - 1
        blocks = blocks_of(s, tokens)
        s.request[r, STATE] = WAITING
        s.request[r, HOME] = engine
        if s.instance[engine, SWAPS] == 1 and s.instance[engine, HOST_FREE] >= blocks:
            s.request[r, STATE] = SWAPPED
            s.instance[engine, HOST_FREE] -= blocks
            s.instance_s[engine, PENALTY] += blocks / s.instance_s[engine, SWAP_RATE]
    give_up(s, engine, r, tokens)
    enqueue(s, engine, r)


@compiled
def make_room(s: RunState, i: int, now_s: float) -> bool:
    """Preempts until the next decode step has its blocks; whether any was."""
    engine, preempted = s.instance[i, ENGINE], False
    while s.instance[i, SEQUENCES] > 0 and growth(s, i, s.instance[i, ITERATION]) > room(s, engine):
        preempt(s, i, last_running(s, i), now_s)
        preempted = True
    return preempted
