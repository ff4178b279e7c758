"""Running batches of an instance: where they stand, and how a stretch of decode steps is cut by something new.

A stretch is cut at the next end of a step. The batches that are in flight in a pipeline are rows of their own.
"""

from planner.simulate.loop.fields import (
    DIRTY,
    FURTHER,
    LEADER,
    MEMBERS,
    NUM_DIRTY,
    SEQUENCES,
    STAGES,
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
def interrupt(s: RunState, i: int, now_s: float) -> None:
    """Something new for an instance: if idle, it is scheduled; decode steps are cut at the next end of one.

    Where batches are in flight in stages, the next may be formed beside them.
    """
    if s.instance[i, STEPS] == 0 or s.instance[i, STAGES] > 1:
        mark(s, i)
    elif s.instance[i, STEPS] > 1 and s.end_s[i, 0] > now_s:
        steps, end_s = decode_steps(s, i, s.instance[i, STEPS], now_s)
        s.instance[i, STEPS] = steps
        set_end(s, i, end_s)
