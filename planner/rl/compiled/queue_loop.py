"""The loop of `queue`, for numba. Suffixes: Q samples in queue order, R replicas, which `segments` decodes on."""

from planner.rl.compiled.segments import Curve, Replicas, admit, advance, decode_s, fits, release, steps_left
from planner.solvers.compiled.heaps import drop, push


def run_queue(
    prompt_Q, output_Q, slots, step_s, sequence_s, token_s, prefill_tokens_per_s, kv_tokens, finish, running, size_R,
    context_R, reserved_R, steps_R, event_s, event_R, done_s_Q,
):  # fmt: skip
    """Fills when every sample of the queue is done; replicas are as many as `size_R` has."""
    curve = Curve(step_s, sequence_s, token_s)
    replicas = Replicas(prompt_Q, output_Q, slots, kv_tokens, finish, running, size_R, reserved_R, context_R, steps_R)
    num, count = len(prompt_Q), len(size_R)
    events = head = refused = r = 0
    while head < num and refused < count:
        if fits(replicas, r, head):
            admit(replicas, r, head)
            head, refused = head + 1, 0
        else:
            refused += 1
        r = (r + 1) % count
    for r in range(count):
        push(event_s, event_R, 0, events, context_R[r] / prefill_tokens_per_s + decode_s(curve, replicas, r), r)
        events += 1
    while events > 0:
        now, r = event_s[0], event_R[0]
        drop(event_s, event_R, 0, events)
        events -= 1
        advance(replicas, r, steps_left(replicas, r))
        while size_R[r] > 0 and steps_left(replicas, r) == 0:
            done_s_Q[release(replicas, r)] = now
        admitted = 0
        while head < num and fits(replicas, r, head):
            admit(replicas, r, head)
            admitted += prompt_Q[head]
            head += 1
        if size_R[r] > 0:
            push(event_s, event_R, 0, events, (now + admitted / prefill_tokens_per_s) + decode_s(curve, replicas, r), r)
            events += 1
