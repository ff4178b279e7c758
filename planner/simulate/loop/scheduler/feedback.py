"""The skip-join multi-level feedback queue (FastServe): quanta of decode time, and lower levels that make way.

`i` is the row of the running batch that gets its next step, `engine` that of the instance whose it is: the same, but
for the further batches of a pipeline.
"""

import numpy as np

from planner.simulate.loop.fields import (
    DUE,
    ENGINE,
    FEEDBACK,
    GENERATED,
    INPUT,
    KEY,
    LEFT,
    NONE,
    QUANTUM,
    QUEUE,
    QUEUEING,
    SEQUENCES,
    STATE,
    WAITING,
)
from planner.simulate.loop.memory import (
    blocks_of_context,
    cached_blocks,
    needed_blocks,
    room,
)
from planner.simulate.loop.program import compiled
from planner.simulate.loop.scheduler.admission import full, margin_of
from planner.simulate.loop.scheduler.preemption import last_running, preempt
from planner.simulate.loop.state import RunState


@compiled
def demote(s: RunState, i: int, now_s: float) -> None:
    """Moves decoding requests that have used up their quantum to the next level, which has twice the quantum."""
    for place in range(s.instance[i, SEQUENCES]):
        r = s.batch[i, place]
        if s.request_s[r, DUE] < 0.0:
            s.request_s[r, DUE] = now_s + s.request_s[r, LEFT]
        elif now_s >= s.request_s[r, DUE]:
            s.request_s[r, KEY] += 1.0
            s.request_s[r, DUE] = now_s + s.run_s[QUANTUM] * 2.0 ** s.request_s[r, KEY]


@compiled
def blocked(s: RunState, i: int, r: int) -> bool:
    """Whether a waiting request finds no place, or no room for its cache."""
    if full(s, i):
        return True
    engine = s.instance[i, ENGINE]
    tokens, free = s.request[r, INPUT] + s.request[r, GENERATED], room(s, engine) - margin_of(s, i)
    if s.request[r, STATE] == WAITING:
        return bool(needed_blocks(s, engine, r, cached_blocks(s, engine, r), tokens) > free)
    return bool(blocks_of_context(s, engine, r, tokens) > free)


@compiled
def make_way(s: RunState, i: int, now_s: float) -> None:
    """Preempts requests of lower levels for one of a higher level that is blocked."""
    engine = s.instance[i, ENGINE]
    while s.instance[engine, QUEUE] != NONE:
        r, last = s.instance[engine, QUEUE], last_running(s, i)
        if last == NONE or s.request_s[r, KEY] >= s.request_s[last, KEY] or not blocked(s, i, r):
            return
        preempt(s, i, last, now_s)


@compiled
def next_in_line(s: RunState, i: int) -> bool:
    """Whether the first of the feedback queue may get its turn at the next step: by its level, or as room is left."""
    engine = s.instance[i, ENGINE]
    if s.run[QUEUEING] != FEEDBACK or s.instance[engine, QUEUE] == NONE:
        return False
    r = s.instance[engine, QUEUE]
    return bool(s.request_s[r, KEY] < s.request_s[last_running(s, i), KEY] or not blocked(s, i, r))


@compiled
def quantum_end(s: RunState, i: int) -> float:
    """When the first of the decoding requests has used up its quantum; at once if one has only now begun."""
    end_s = np.inf
    if s.run[QUEUEING] == FEEDBACK:
        for place in range(s.instance[i, SEQUENCES]):
            end_s = min(end_s, s.request_s[s.batch[i, place], DUE])
    return end_s
