"""Running batches of an instance: where they stand, and how a stretch of decode steps is cut by something new.

A stretch is cut at the next end of a step; where steps are formed one ahead, at the end of the one after that, which is
formed by then. The batches that are in flight in a pipeline are rows of their own.
"""

import numpy as np

from planner.simulate.loop.fields import (
    ASYNCHRONOUS,
    DIRTY,
    ENDS,
    FORMS,
    FURTHER,
    LEADER,
    MEMBERS,
    NUM_DIRTY,
    NUM_ENDING,
    SEQUENCES,
    STAGES,
    START,
    STEPS,
)
from planner.simulate.loop.heaps import set_end
from planner.simulate.loop.program import compiled
from planner.simulate.loop.state import RunState
from planner.simulate.loop.steps import decode_steps


@compiled
def batch_row(s: RunState, i: int, number: int) -> int:
    """The row of one of the running batches of an instance; the first is its own."""
    return int(s.instance[i, FURTHER] + (number - 1) * s.instance[i, MEMBERS]) if number > 0 else i


@compiled
def sequences_of(s: RunState, i: int) -> int:
    """Sequences that an instance decodes, in all of its batches."""
    total = s.instance[i, SEQUENCES]
    for number in range(1, s.instance[i, STAGES]):
        total += s.instance[batch_row(s, i, number), SEQUENCES]
    return int(total)


@compiled
def mark(s: RunState, i: int) -> None:
    """Notes that an instance, and those that step with it, are to be scheduled at this moment."""
    leader = s.instance[i, LEADER]
    if s.instance[leader, DIRTY] == 0:
        s.instance[leader, DIRTY] = 1
        s.dirty[s.run[NUM_DIRTY]] = leader
        s.run[NUM_DIRTY] += 1


@compiled
def interrupt_ahead(s: RunState, i: int, now_s: float) -> None:
    """Something new for an instance that forms steps ahead."""
    if s.instance[i, STEPS] == 0 and s.end_s[i] == np.inf:
        mark(s, i)
    elif s.instance[i, STEPS] > 1 and s.instance_s[i, FORMS] > now_s:
        steps, last_s, end_s = decode_steps(s, i, s.instance[i, STEPS], now_s)
        s.instance[i, STEPS] = steps
        s.instance_s[i, FORMS], s.instance_s[i, ENDS] = last_s, end_s
        wake(s, i)


@compiled
def wake(s: RunState, i: int) -> None:
    """Sets when an instance that forms steps ahead has something to do: requests end as its stretch starts."""
    set_end(s, i, s.instance_s[i, START if s.instance[i, NUM_ENDING] > 0 else FORMS])


@compiled
def interrupt(s: RunState, i: int, now_s: float) -> None:
    """Something new for an instance: if idle, it is scheduled; decode steps are cut at the next end of one.

    Where batches are in flight in stages, the next may be formed beside them. Where steps are formed one ahead, one is
    when the step that runs ends.
    """
    if s.instance[i, ASYNCHRONOUS] == 1:
        interrupt_ahead(s, i, now_s)
        return
    if s.instance[i, STEPS] == 0 or s.instance[i, STAGES] > 1:
        mark(s, i)
    elif s.instance[i, STEPS] > 1 and s.end_s[i] > now_s:
        steps, _, end_s = decode_steps(s, i, s.instance[i, STEPS], now_s)
        s.instance[i, STEPS] = steps
        s.instance_s[i, ENDS] = end_s
        set_end(s, i, end_s)
