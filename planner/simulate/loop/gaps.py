"""Gaps between the tokens of a request at its client, counted as they come (ITL, inter-token latency).

A step gives every request that it decodes a token, or several with drafts that were right, which come together: one
gap, as `vllm bench serve` counts the time between two messages (vLLM 0.33, `itl` in
vllm/benchmarks/lib/endpoint_request_func.py). The gap lasts from the token before, so that steps of others' prompts,
time in the queue after a preemption, a copy to another instance and a failure are within it. The first token has none.

Requests that had their last token at the last step of their batch have the gap in common, and are counted by workload;
the others, that have joined since, are `fresh` and have their own. Counts are by workload, by the part of the run, in
requests that are complete, and by `gap_bin`: bins of equal width between powers of two.
"""

import math

from planner.simulate.loop.fields import (
    CONTEXT,
    FINEST,
    FRESH,
    GAP_BINS,
    GAP_PARTS,
    LAST_STEP,
    LAST_TOKEN,
    LEAST_EXPONENT,
    NUM_COMPLETE,
    SEQUENCES,
    START,
    WORKLOAD,
)
from planner.simulate.loop.program import compiled
from planner.simulate.loop.state import RunState
from planner.simulate.loop.steps import decode_step_s


@compiled
def gap_bin(gap_s: float) -> int:
    """The bin of a gap; those too short or too long for any are in the first and the last."""
    if gap_s <= 0.0:
        return 0
    fraction, exponent = math.frexp(gap_s)
    place = (exponent - LEAST_EXPONENT) * FINEST + int((2.0 * fraction - 1.0) * FINEST)
    return min(max(place, 0), GAP_BINS - 1)


@compiled
def part_of_run(s: RunState) -> int:
    """The part of the run that this moment is in."""
    return int(min(s.run[NUM_COMPLETE] * GAP_PARTS // len(s.request), GAP_PARTS - 1))


@compiled
def note_gap(s: RunState, r: int, now_s: float) -> None:
    """A request has a token, and had one before."""
    workload, part = s.request[r, WORKLOAD], part_of_run(s)
    gap_s = now_s - s.request_s[r, LAST_TOKEN]
    s.gap_counts[workload, part, gap_bin(gap_s)] += 1
    s.gap_s[workload, part] += gap_s
    s.request_s[r, LAST_TOKEN] = now_s


@compiled
def join_batch(s: RunState, i: int, r: int) -> None:
    """A request is about to join a decoding batch."""
    if s.instance[i, SEQUENCES] == 0:
        s.instance_s[i, LAST_STEP] = s.request_s[r, LAST_TOKEN]
    if s.request_s[r, LAST_TOKEN] == s.instance_s[i, LAST_STEP]:
        s.mates[i, s.request[r, WORKLOAD]] += 1
    else:
        s.fresh[i, s.instance[i, FRESH]] = r
        s.instance[i, FRESH] += 1


@compiled
def leave_batch(s: RunState, i: int, r: int) -> None:
    """A request leaves a decoding batch before its last token."""
    for place in range(s.instance[i, FRESH]):
        if s.fresh[i, place] == r:
            s.instance[i, FRESH] -= 1
            s.fresh[i, place] = s.fresh[i, s.instance[i, FRESH]]
            return
    s.mates[i, s.request[r, WORKLOAD]] -= 1
    s.request_s[r, LAST_TOKEN] = s.instance_s[i, LAST_STEP]


@compiled
def clear_batch(s: RunState, i: int) -> None:
    """A decoding batch has nobody left."""
    s.instance[i, FRESH] = 0
    for workload in range(s.mates.shape[1]):
        s.mates[i, workload] = 0


@compiled
def note_steps(s: RunState, i: int, steps: int, now_s: float) -> None:
    """A stretch that decodes ends, its batch as it was."""
    part, first_s, last_s = part_of_run(s), now_s, s.instance_s[i, LAST_STEP]
    if steps > 1:
        first_s = s.instance_s[i, START] + decode_step_s(s, i, s.instance[i, CONTEXT])
    first = gap_bin(first_s - last_s)
    for workload in range(s.mates.shape[1]):
        s.gap_counts[workload, part, first] += s.mates[i, workload]
        s.gap_s[workload, part] += s.mates[i, workload] * (now_s - last_s)
    for place in range(s.instance[i, FRESH]):
        r = s.fresh[i, place]
        workload, before_s = s.request[r, WORKLOAD], s.request_s[r, LAST_TOKEN]
        s.gap_counts[workload, part, gap_bin(first_s - before_s)] += 1
        s.gap_s[workload, part] += now_s - before_s
        s.mates[i, workload] += 1
    s.instance[i, FRESH] = 0
    s.instance_s[i, LAST_STEP] = now_s
    if steps > 1:
        note_further_steps(s, i, steps, part)


@compiled
def note_further_steps(s: RunState, i: int, steps: int, part: int) -> None:
    """The steps of a stretch after its first one: contexts grow by a token a step, and step times hardly."""
    sequences, context = s.instance[i, SEQUENCES], s.instance[i, CONTEXT]
    shortest = gap_bin(decode_step_s(s, i, context + sequences))
    longest = gap_bin(decode_step_s(s, i, context + sequences * (steps - 1)))
    for workload in range(s.mates.shape[1]):
        count = s.mates[i, workload]
        if count > 0 and shortest == longest:
            s.gap_counts[workload, part, shortest] += count * (steps - 1)
        elif count > 0:
            for step in range(1, steps):
                s.gap_counts[workload, part, gap_bin(decode_step_s(s, i, context + sequences * step))] += count
