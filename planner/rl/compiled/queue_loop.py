"""The loop of `queue`, for numba.

Suffixes: Q samples in queue order, R replicas. A replica is advanced from completion to completion: k steps with b
sequences holding S tokens take k (step + sequence b) + token (k S + b k (k - 1) / 2).
"""

from planner.solvers.compiled.heaps import drop, push


def run_queue(
    prompt_Q, output_Q, slots, step_s, sequence_s, token_s, prefill_tokens_per_s, kv_tokens, finish, running, size_R,
    context_R, reserved_R, steps_R, event_s, event_R, done_s_Q,
):  # fmt: skip
    """Fills when every sample of the queue is done; replicas are as many as `size_R` has.

    `finish` and `running` are heaps, `slots` for each replica, of the samples that run by the step that ends them.
    """
    num = len(prompt_Q)
    replicas = len(size_R)
    events = 0
    head = 0
    refused = 0
    r = 0
    while head < num and refused < replicas:
        need = prompt_Q[head] + output_Q[head]
        if size_R[r] < slots and (size_R[r] == 0 or reserved_R[r] + need <= kv_tokens):
            push(finish, running, r * slots, size_R[r], float(output_Q[head]), head)
            size_R[r] += 1
            context_R[r] += prompt_Q[head]
            reserved_R[r] += need
            head += 1
            refused = 0
        else:
            refused += 1
        r = (r + 1) % replicas
    for r in range(replicas):
        size, steps = size_R[r], finish[r * slots]
        cost = steps * (step_s + sequence_s * size) + token_s * (steps * context_R[r] + size * steps * (steps - 1) / 2)
        push(event_s, event_R, 0, events, context_R[r] / prefill_tokens_per_s + cost, r)
        events += 1
    while events > 0:
        now, r = event_s[0], event_R[0]
        drop(event_s, event_R, 0, events)
        events -= 1
        base = r * slots
        context_R[r] += size_R[r] * (finish[base] - steps_R[r])
        steps_R[r] = finish[base]
        while size_R[r] > 0 and finish[base] == steps_R[r]:
            sample = running[base]
            done_s_Q[sample] = now
            drop(finish, running, base, size_R[r])
            size_R[r] -= 1
            context_R[r] -= prompt_Q[sample] + output_Q[sample]
            reserved_R[r] -= prompt_Q[sample] + output_Q[sample]
        admitted = 0
        while head < num and size_R[r] < slots:
            need = prompt_Q[head] + output_Q[head]
            if size_R[r] > 0 and reserved_R[r] + need > kv_tokens:
                break
            push(finish, running, base, size_R[r], steps_R[r] + output_Q[head], head)
            size_R[r] += 1
            context_R[r] += prompt_Q[head]
            reserved_R[r] += need
            admitted += prompt_Q[head]
            head += 1
        if size_R[r] > 0:
            size, steps = size_R[r], finish[base] - steps_R[r]
            cost = steps * (step_s + sequence_s * size) + token_s * (
                steps * context_R[r] + size * steps * (steps - 1) / 2
            )
            push(event_s, event_R, 0, events, (now + admitted / prefill_tokens_per_s) + cost, r)
            events += 1
