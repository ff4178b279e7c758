"""Data-parallel ranks that step together (expert parallelism): the next step takes as long as the slowest rank."""

import numpy as np

from planner.simulate.loop.admission import schedule
from planner.simulate.loop.fields import (
    DRAFT_BLOCKS,
    DRAFTS,
    END,
    LISTED,
    MEMBERS,
    NONE,
    SEQUENCES,
    SINGLE,
    STALLED,
    STEP_TOKENS,
    STEPS,
    TURNS,
)
from planner.simulate.loop.heaps import set_end
from planner.simulate.loop.program import compiled
from planner.simulate.loop.state import RunState
from planner.simulate.loop.steps import of_rank_tokens


@compiled
def new_tokens(s: RunState, i: int) -> int:
    """Tokens that the step which an instance has begun computes."""
    tokens = s.instance[i, STEP_TOKENS]
    if s.instance[i, STALLED] == 0:
        drafts = s.instance[i, DRAFTS] if s.instance[i, DRAFT_BLOCKS] != NONE else 0
        tokens += s.instance[i, SEQUENCES] * (1 + drafts)
    return int(tokens)


@compiled
def schedule_group(s: RunState, i: int, now_s: float) -> None:
    """Starts the next stretch of an instance, or the next step of those that make it together when all are ready.

    The step of a group ends for all when its slowest member is done and what they do together is; where experts are
    loaded unevenly, later still.
    """
    end = i + s.instance[i, MEMBERS]
    for member in range(i, end):
        if s.instance[member, STEPS] > 0:
            return
    last_s, least_s, tokens = -np.inf, 0.0, 0
    for member in range(i, end):
        schedule(s, member, now_s)
        if s.instance[member, STEPS] > 0:
            last_s = max(last_s, s.instance_s[member, END])
            own = new_tokens(s, member)
            tokens += own
            if s.instance[member, LISTED] > 0:
                least_s = max(least_s, of_rank_tokens(s, s.least_s, member, float(own)))
    if s.instance[i, SINGLE] == 0 or last_s == -np.inf:
        return
    last_s = max(last_s + of_rank_tokens(s, s.joint_s, i, tokens / s.instance[i, MEMBERS]), now_s + least_s)
    if len(s.skew) > 0:
        last_s = now_s + (last_s - now_s) * s.skew[s.instance[i, TURNS] % len(s.skew)]
        s.instance[i, TURNS] += 1
    for member in range(i, end):
        if s.instance[member, STEPS] > 0:
            set_end(s, member, last_s)
