"""Simulates single-turn samples from a shared queue on equal replicas with continuous batching (numba).

Suffixes: Q samples in queue order, R replicas. A replica is advanced from completion to completion: k steps with b
sequences holding S tokens take k (step + sequence b) + token (k S + b k (k - 1) / 2).
"""

import numpy as np
from numba import njit

from planner.solvers.compiled.heaps import drop, push


@njit(cache=True)
def run_queue(prompt_Q, output_Q, replicas, step_s, sequence_s, token_s, prefill_tokens_per_s, max_running, kv_tokens):
    """Completion time of every sample of the queue [Q], seconds."""
    num = len(prompt_Q)
    replicas = min(replicas, num)  # the first deal reaches one replica a sample
    slots = min(max_running, num)
    done_s_Q = np.zeros(num)
    finish = np.empty(replicas * slots)  # heaps of running samples by the step of the replica that finishes them
    running = np.empty(replicas * slots, np.int64)
    size_R = np.zeros(replicas, np.int64)
    context_R = np.zeros(replicas)
    reserved_R = np.zeros(replicas, np.int64)
    steps_R = np.zeros(replicas)
    event_s = np.empty(replicas)
    event_R = np.empty(replicas, np.int64)
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
    return done_s_Q
