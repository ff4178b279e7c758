"""Stretches of equal decode steps: cut at the next step end when something changes on their instance."""

from planner.simulate.loop.fields import DIRTY, END, LEADER, NUM_DIRTY, STEPS
from planner.simulate.loop.heaps import set_end
from planner.simulate.loop.program import compiled
from planner.simulate.loop.state import RunState
from planner.simulate.loop.steps import decode_steps


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
    """Something new for an instance: if idle, it is scheduled; decode steps are cut at the next end of one."""
    if s.instance[i, STEPS] == 0:
        mark(s, i)
    elif s.instance[i, STEPS] > 1 and s.instance_s[i, END] > now_s:
        steps, end_s = decode_steps(s, i, s.instance[i, STEPS], now_s)
        s.instance[i, STEPS] = steps
        set_end(s, i, end_s)
