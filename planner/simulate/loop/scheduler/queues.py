"""Requests that wait at an instance, and its decoding batch: how they join and leave.

`i` is the row of the running batch that gets its next step, `engine` that of the instance whose it is: the same, but
for the further batches of a pipeline.
"""

from planner.simulate.loop.fields import (
    CONTEXT,
    DECODING,
    DUE,
    FINISH,
    GENERATED,
    HOME,
    INPUT,
    ITERATION,
    OUTPUT,
    PLACE,
    QUEUE,
    QUEUED,
    QUEUED_BLOCKS,
    STATE,
)
from planner.simulate.loop.gaps import join_batch, leave_batch
from planner.simulate.loop.heaps import drop_batch, pop, push, push_batch
from planner.simulate.loop.memory import (
    blocks_of,
)
from planner.simulate.loop.program import compiled
from planner.simulate.loop.state import RunState


@compiled
def enqueue(s: RunState, engine: int, r: int) -> None:
    """Puts a request into the queue of an instance."""
    s.instance[engine, QUEUE] = push(s, s.instance[engine, QUEUE], r)
    s.instance[engine, QUEUED] += 1
    s.instance[engine, QUEUED_BLOCKS] += blocks_of(s, s.request[r, INPUT] + s.request[r, GENERATED])


@compiled
def dequeue(s: RunState, engine: int) -> int:
    """Takes the first request out of the queue."""
    r = s.instance[engine, QUEUE]
    s.instance[engine, QUEUE] = pop(s, r)
    s.instance[engine, QUEUED] -= 1
    s.instance[engine, QUEUED_BLOCKS] -= blocks_of(s, s.request[r, INPUT] + s.request[r, GENERATED])
    return int(r)


@compiled
def start_decoding(s: RunState, i: int, r: int) -> None:
    """Adds a request, its cache in place, to the decoding batch.

    A sequence takes a block at the decode iterations that equal its residue, modulo the tokens of a block.
    """
    left = s.request[r, OUTPUT] - s.request[r, GENERATED]
    s.request[r, FINISH] = s.instance[i, ITERATION] + left
    s.request[r, STATE] = DECODING
    s.request[r, HOME] = i
    s.request_s[r, DUE] = -1.0
    s.instance[i, CONTEXT] += s.request[r, INPUT] + s.request[r, GENERATED]
    s.residue[i, residue_of(s, r)] += 1
    join_batch(s, i, r)
    push_batch(s, i, r)


@compiled
def residue_of(s: RunState, r: int) -> int:
    """The iteration, negated and modulo the tokens of a block, at which a decoding request takes a block."""
    return int((s.request[r, INPUT] + s.request[r, OUTPUT] - s.request[r, FINISH] - 1) % s.residue.shape[1])


@compiled
def stop_decoding(s: RunState, i: int, r: int) -> None:
    """Takes a request out of the decoding batch, with the tokens that it has by now."""
    left = s.request[r, FINISH] - s.instance[i, ITERATION]
    s.request[r, GENERATED] = s.request[r, OUTPUT] - left
    s.instance[i, CONTEXT] -= s.request[r, INPUT] + s.request[r, GENERATED]
    s.residue[i, residue_of(s, r)] -= 1
    leave_batch(s, i, r)
    drop_batch(s, i, s.request[r, PLACE])
