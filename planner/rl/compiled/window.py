"""Simulates samples that are handed out continuously, a window of groups at a time, on equal replicas (numba).

Suffixes: Q samples in the order in which they are handed out, R replicas. Between two events of a replica k steps with
b sequences holding S tokens take k (step + sequence b) + token (k S + b k (k - 1) / 2), as in `queue`.
"""

import numpy as np
from numba import njit

from planner.solvers.compiled.heaps import drop, push

NONE = -1


@njit(cache=True)
def run_window(
    prompt_Q,
    output_Q,
    group,
    window,
    replicas,
    step_s,
    sequence_s,
    token_s,
    prefill_tokens_per_s,
    max_running,
    kv_tokens,
):
    """When every sample starts and is done [Q], seconds.

    `window` groups of `group` consecutive samples are under way at a time; the next one is handed out when all samples
    of one are done. A sample goes to the replica that has the fewest, the first of those, and waits there in line. A
    replica takes in those that wait between two steps, and prefills them before it goes on.
    """
    num = len(prompt_Q)
    slots = min(max_running, num)
    started_s_Q, done_s_Q = np.zeros(num), np.zeros(num)
    finish = np.empty(replicas * slots)  # heaps of running samples by the step of the replica that finishes them
    running = np.empty(replicas * slots, np.int64)
    size_R, assigned_R = np.zeros(replicas, np.int64), np.zeros(replicas, np.int64)
    reserved_R = np.zeros(replicas, np.int64)
    context_R, steps_R, clock_R = np.zeros(replicas), np.zeros(replicas), np.zeros(replicas)
    event_s_R = np.full(replicas, np.inf)
    first_R, last_R = np.full(replicas, NONE), np.full(replicas, NONE)
    next_Q = np.full(num, NONE)
    left_G = np.full((num + group - 1) // group, group)
    left_G[-1] = num - (len(left_G) - 1) * group
    changed_R = np.zeros(replicas, np.bool_)
    head, done, now, opening = 0, 0, 0.0, window
    while done < num:
        while opening > 0 and head < num:
            for sample in range(head, min(head + group, num)):
                r = np.argmin(assigned_R)
                assigned_R[r] += 1
                if first_R[r] == NONE:
                    first_R[r] = sample
                else:
                    next_Q[last_R[r]] = sample
                last_R[r] = sample
                changed_R[r] = True
            head, opening = min(head + group, num), opening - 1
        opening = 0
        for r in range(replicas):
            if not changed_R[r]:
                continue
            changed_R[r] = False
            base, size, waits = r * slots, size_R[r], False
            if first_R[r] != NONE and size < slots:
                need = prompt_Q[first_R[r]] + output_Q[first_R[r]]
                waits = size == 0 or reserved_R[r] + need <= kv_tokens
            if not waits and event_s_R[r] < np.inf:
                continue
            if size == 0:
                clock_R[r] = max(clock_R[r], now)
            elif clock_R[r] < now:  # the step that runs ends first
                bend = token_s * size / 2.0
                part = step_s + sequence_s * size + token_s * context_R[r] - bend
                wanted = now - clock_R[r]
                steps = wanted / part if bend == 0.0 else (np.sqrt(part**2 + 4 * bend * wanted) - part) / (2 * bend)
                steps = np.ceil(steps - 1e-9)
                if steps >= finish[base] - steps_R[r]:
                    continue  # with that step samples are done
                clock_R[r] += steps * part + bend * steps**2
                context_R[r] += size * steps
                steps_R[r] += steps
            admitted = 0
            while first_R[r] != NONE and size_R[r] < slots:
                sample = first_R[r]
                need = prompt_Q[sample] + output_Q[sample]
                if size_R[r] > 0 and reserved_R[r] + need > kv_tokens:
                    break
                push(finish, running, base, size_R[r], steps_R[r] + output_Q[sample], sample)
                size_R[r] += 1
                context_R[r] += prompt_Q[sample]
                reserved_R[r] += need
                admitted += prompt_Q[sample]
                started_s_Q[sample] = clock_R[r]
                first_R[r] = next_Q[sample]
            clock_R[r] += admitted / prefill_tokens_per_s
            event_s_R[r] = np.inf
            if size_R[r] > 0:
                size, steps = size_R[r], finish[base] - steps_R[r]
                cost = steps * (step_s + sequence_s * size) + token_s * (
                    steps * context_R[r] + size * steps * (steps - 1) / 2
                )
                event_s_R[r] = clock_R[r] + cost
        r = np.argmin(event_s_R)
        now, base = event_s_R[r], r * slots
        context_R[r] += size_R[r] * (finish[base] - steps_R[r])
        steps_R[r], clock_R[r], event_s_R[r] = finish[base], now, np.inf
        changed_R[r] = True
        while size_R[r] > 0 and finish[base] == steps_R[r]:
            sample = running[base]
            done_s_Q[sample] = now
            done += 1
            drop(finish, running, base, size_R[r])
            size_R[r] -= 1
            assigned_R[r] -= 1
            context_R[r] -= prompt_Q[sample] + output_Q[sample]
            reserved_R[r] -= prompt_Q[sample] + output_Q[sample]
            left_G[sample // group] -= 1
            if left_G[sample // group] == 0:
                opening += 1
    return started_s_Q, done_s_Q
