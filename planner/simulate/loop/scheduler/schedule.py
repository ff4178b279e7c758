"""The next stretch of an instance: continuous batching, whose steps it has, and when it ends.

`i` is the row of the running batch that gets its next step, `engine` that of the instance whose it is: the same, but
for the further batches of a pipeline.
"""

import numpy as np

from planner.simulate.loop.fields import (
    ASYNCHRONOUS,
    CUT,
    ENDS,
    ENGINE,
    FEEDBACK,
    FINISH,
    FORMS,
    FREE,
    ITERATION,
    LISTED,
    LONGEST_STRETCH,
    MIXED,
    NONE,
    NUM_ENDING,
    PASS,
    PENALTY,
    POLICY,
    PREFILL_PAIRS,
    QUEUE,
    QUEUEING,
    RESERVES,
    SEQUENCES,
    SINGLE,
    STAGES,
    STALLED,
    START,
    STEP_TOKENS,
    STEPS,
    TOKEN_BUDGET,
)
from planner.simulate.loop.heaps import set_end
from planner.simulate.loop.memory import (
    growth,
    take,
)
from planner.simulate.loop.program import compiled
from planner.simulate.loop.scheduler.admission import admit, fill, go_on, join_arrived
from planner.simulate.loop.scheduler.feedback import demote, make_way, next_in_line, quantum_end
from planner.simulate.loop.scheduler.preemption import make_room
from planner.simulate.loop.speculation import take_drafts
from planner.simulate.loop.state import RunState
from planner.simulate.loop.steps import decode_steps, mixed_step_s
from planner.simulate.loop.stretches import wake


@compiled
def awaits_end(s: RunState, i: int) -> bool:
    """Whether requests wait while others that are in their last step still hold their places and blocks."""
    return bool(s.instance[i, NUM_ENDING] > 0 and s.instance[i, QUEUE] != NONE)


@compiled
def looked_ahead(s: RunState, i: int) -> int:
    """Decode steps until the batch changes by itself: one finishes, or blocks run out."""
    steps = s.request[s.batch[i, 0], FINISH] - s.instance[i, ITERATION]
    steps = min(steps, LONGEST_STRETCH)
    free = s.instance[i, FREE]
    if s.instance[i, SINGLE] == 1:
        return 1
    if s.instance[i, RESERVES] == 1 or free >= s.instance[i, SEQUENCES] * (steps // s.residue.shape[1] + 1):
        return int(steps)
    for ahead in range(1, steps):
        free -= growth(s, i, s.instance[i, ITERATION] + ahead)
        if free < 0:
            return ahead
    return int(steps)


@compiled
def schedule(s: RunState, i: int, now_s: float) -> None:
    """Starts the next stretch of an instance that is between steps, if it has anything to do."""
    join_arrived(s, i)
    s.instance[i, LISTED] = s.instance[i, CUT] = s.instance[i, STEP_TOKENS] = 0
    s.instance_s[i, PREFILL_PAIRS] = 0.0
    preempted = False
    if s.run[QUEUEING] == FEEDBACK:
        demote(s, i, now_s)
        make_way(s, i, now_s)
    if s.instance[i, POLICY] == MIXED:
        preempted = make_room(s, i, now_s)
        if go_on(s, i, s.instance[i, TOKEN_BUDGET] - s.instance[i, SEQUENCES], now_s):
            preempted = True
        empty = s.instance[i, SEQUENCES] + s.instance[i, LISTED] == 0 and s.instance[i, ASYNCHRONOUS] == 0
        if not preempted or empty:
            admit(s, i, s.instance[i, TOKEN_BUDGET] - s.instance[i, SEQUENCES], now_s)
    else:
        fill(s, i, s.instance[i, TOKEN_BUDGET], now_s)
        if s.instance[i, LISTED] == 0:
            preempted = make_room(s, i, now_s)
        if preempted and s.instance[i, SEQUENCES] == 0:
            fill(s, i, s.instance[i, TOKEN_BUDGET], now_s)
    stalled = s.instance[i, POLICY] != MIXED and s.instance[i, LISTED] > 0
    s.instance[i, STALLED] = 1 if stalled else 0
    start_stretch(s, i, 0 if stalled else s.instance[i, SEQUENCES], preempted, now_s)


@compiled
def start_stretch(s: RunState, i: int, sequences: int, preempted: bool, now_s: float) -> None:
    """Sets start, end and length of the stretch; the blocks of its first step are taken now, of others as it ends.

    Of a step in a pipeline the seconds of work are set alone; when it ends depends on those before it.
    """
    engine = s.instance[i, ENGINE]
    staged = s.instance[engine, STAGES] > 1
    start_s = 0.0 if staged else now_s
    if s.instance[i, ASYNCHRONOUS] == 1:
        start_s = max(now_s, s.instance_s[i, ENDS])
    s.instance_s[i, START] = start_s
    if sequences > 0:
        take(s, engine, growth(s, i, s.instance[i, ITERATION]))
    take_drafts(s, i, sequences)
    penalty_s = s.instance_s[engine, PENALTY]
    steps, last_s, end_s = 1, start_s, start_s
    if s.instance[i, LISTED] > 0:
        attended = s.instance_s[i, PREFILL_PAIRS] / s.instance[i, STEP_TOKENS]
        end_s = start_s + mixed_step_s(s, i, sequences, s.instance[i, STEP_TOKENS], attended)
    elif sequences > 0:
        again = preempted or penalty_s > 0.0 or next_in_line(s, i) or awaits_end(s, i)
        steps, last_s, end_s = decode_steps(s, i, 1 if again else looked_ahead(s, i), quantum_end(s, i))
    else:
        steps, end_s, penalty_s = 0, np.inf, 0.0
    s.instance[i, STEPS] = steps
    if staged:
        s.instance_s[i, PASS] = end_s
        return
    if steps > 0:
        s.instance_s[i, PENALTY] = 0.0
    if s.instance[i, ASYNCHRONOUS] == 0:
        s.instance_s[i, ENDS] = end_s + penalty_s
        set_end(s, i, end_s + penalty_s)
    elif steps > 0:
        s.instance_s[i, ENDS] = end_s + penalty_s
        s.instance_s[i, FORMS] = last_s
        wake(s, i)
    else:
        s.instance_s[i, FORMS] = start_s
        set_end(s, i, start_s if start_s > now_s else np.inf)
