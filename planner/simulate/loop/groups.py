"""Steps that several make: data-parallel ranks together (expert parallelism), and batches in the stages of a pipeline.

The next step of a group takes as long as its slowest rank. A pipeline has at most as many batches in flight as stages.
A batch enters a stage when it has left the one before, and the batch before it has left this one; its tokens appear,
and its sequences are free, when it has left the last. Chunks of one prompt may follow each other in successive batches.

Mixed batches are formed at once while fewer than that are in flight (vLLM 0.33, `step_with_batch_queue` in
vllm/v1/engine/core.py, lines 708 to 822): first one of the sequences that are not in flight with prompts beside them,
then others of prompts alone. Where steps that prefill do nothing else, batches have sequences of their own and take
turns, and none overtakes one that is in flight (SGLang 0.5.23, `event_loop_pp` in srt/managers/scheduler_pp_mixin.py,
lines 131 to 216). Both engines wait for their oldest batch when there is nothing to form, and see what arrives
meanwhile when it leaves; here it is seen at once.
"""

import numpy as np

from planner.simulate.loop.fields import (
    ASYNCHRONOUS,
    DRAFT_BLOCKS,
    DRAFTS,
    ENDS,
    ENGINE,
    LISTED,
    MEMBERS,
    MIXED,
    NONE,
    PASS,
    PENALTY,
    POLICY,
    ROTATION,
    SEQUENCES,
    SINGLE,
    STAGES,
    STALLED,
    START,
    STEP_TOKENS,
    STEPS,
    TURNS,
)
from planner.simulate.loop.heaps import set_end
from planner.simulate.loop.program import compiled
from planner.simulate.loop.scheduler.schedule import schedule
from planner.simulate.loop.state import RunState
from planner.simulate.loop.steps import of_rank_tokens
from planner.simulate.loop.stretches import batch_row


@compiled
def new_tokens(s: RunState, i: int) -> int:
    """Tokens that the step which an instance has begun computes."""
    tokens = s.instance[i, STEP_TOKENS]
    if s.instance[i, STALLED] == 0:
        drafts = s.instance[i, DRAFTS] if s.instance[i, DRAFT_BLOCKS] != NONE else 0
        tokens += s.instance[i, SEQUENCES] * (1 + drafts)
    return int(tokens)


@compiled
def schedule_group(s: RunState, leader: int, now_s: float) -> None:
    """Starts what those that step together with an instance can start."""
    if s.instance[leader, STAGES] > 1:
        fill_pipeline(s, leader, now_s)
    elif s.instance[leader, SINGLE] == 0:
        if s.instance[leader, STEPS] == 0:
            schedule(s, leader, now_s)
    elif idle(s, leader):
        ahead = s.instance[leader, ASYNCHRONOUS] == 1
        last_s = begin(s, leader, now_s, max(now_s, s.instance_s[leader, ENDS]) if ahead else now_s)
        if last_s > -np.inf:
            for i in range(leader, leader + s.instance[leader, MEMBERS]):
                if s.instance[i, STEPS] > 0 or ahead:
                    s.instance_s[i, ENDS] = last_s
                if s.instance[i, STEPS] > 0 and not ahead:
                    set_end(s, i, last_s)


@compiled
def idle(s: RunState, first: int) -> bool:
    """Whether all that make a step together are between steps."""
    steps = 0
    for i in range(first, first + s.instance[first, MEMBERS]):
        steps += s.instance[i, STEPS]
    return steps == 0


@compiled
def begin(s: RunState, first: int, now_s: float, start_s: float) -> float:
    """Begins the next step of those that make it together.

    Returns when it ends for all, -inf if none has anything to do: when its slowest member is done and what they
    do together is; where experts are loaded unevenly, later still. It counts from `start_s`, as the members do.
    """
    staged = s.instance[first, STAGES] > 1
    last_s, least_s, tokens = -np.inf, 0.0, 0
    for i in range(first, first + s.instance[first, MEMBERS]):
        schedule(s, i, now_s)
        if s.instance[i, STEPS] > 0:
            last_s = max(last_s, s.instance_s[i, PASS if staged else ENDS])
            own = new_tokens(s, i)
            tokens += own
            if s.instance[i, LISTED] > 0:
                least_s = max(least_s, of_rank_tokens(s, s.least_s, i, float(own)))
    if last_s == -np.inf:
        return last_s
    mean = tokens / s.instance[first, MEMBERS]
    last_s = max(last_s + of_rank_tokens(s, s.joint_s, first, mean), start_s + least_s)
    if len(s.skew) > 0:
        leader = s.instance[first, ENGINE]
        last_s = start_s + (last_s - start_s) * s.skew[s.instance[leader, TURNS] % len(s.skew)]
        s.instance[leader, TURNS] += 1
    return last_s


@compiled
def fill_pipeline(s: RunState, leader: int, now_s: float) -> None:
    """Forms the batches that the rules of the engine allow at this moment."""
    stages = s.instance[leader, STAGES]
    if s.instance[leader, POLICY] != MIXED:
        take_turns(s, leader, now_s)
        return
    for number in range(stages):
        first = batch_row(s, leader, number)
        if decodes(s, first) and idle(s, first):
            form_batch(s, leader, first, now_s)
    for number in range(stages):
        first = batch_row(s, leader, number)
        if idle(s, first) and not form_batch(s, leader, first, now_s):
            return


@compiled
def take_turns(s: RunState, leader: int, now_s: float) -> None:
    """Forms batches in turn up to the first that is in flight; those that have nothing to do are passed over."""
    stages = s.instance[leader, STAGES]
    number, passed = s.instance[leader, ROTATION], 0
    while passed < stages and idle(s, batch_row(s, leader, number)):
        formed = form_batch(s, leader, batch_row(s, leader, number), now_s)
        number, passed = (number + 1) % stages, passed + 1
        if formed:
            s.instance[leader, ROTATION], passed = number, 0


@compiled
def decodes(s: RunState, first: int) -> bool:
    """Whether a batch has sequences on any of those that step together."""
    sequences = 0
    for i in range(first, first + s.instance[first, MEMBERS]):
        sequences += s.instance[i, SEQUENCES]
    return sequences > 0


@compiled
def form_batch(s: RunState, leader: int, first: int, now_s: float) -> bool:
    """Forms a batch and has it pass the stages behind those before it; False if there is nothing to do.

    Every stage takes an equal part of its work. What is moved for it (`PENALTY`) each stage moves before its part.
    """
    pass_s = begin(s, first, now_s, 0.0)
    if pass_s == -np.inf:
        return False
    end, penalty_s = first + s.instance[first, MEMBERS], 0.0
    for i in range(first, end):
        if s.instance[i, STEPS] > 0:
            engine = s.instance[i, ENGINE]
            penalty_s = max(penalty_s, s.instance_s[engine, PENALTY])
            s.instance_s[engine, PENALTY] = 0.0
    left_s = now_s
    stage_s = pass_s / s.instance[leader, STAGES]
    for stage in range(s.instance[leader, STAGES]):
        left_s = max(max(now_s, s.stage_free_s[leader, stage]) + penalty_s, left_s) + stage_s
        s.stage_free_s[leader, stage] = left_s
    for i in range(first, end):
        if s.instance[i, STEPS] > 0:
            s.instance_s[i, START] = now_s
            s.instance_s[i, PASS] = pass_s + penalty_s
            s.instance_s[i, ENDS] = left_s
            set_end(s, i, left_s)
    return True
