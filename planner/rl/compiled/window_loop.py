"""The loop of `window`, for numba.

Suffixes: Q samples in the order in which they are handed out, R replicas, G groups, B batches. Between two events of a
replica k steps with b sequences holding S tokens take k (step + sequence b) + token (k S + b k (k - 1) / 2), as in
`queue_loop`.
"""

import numpy as np
from numba import njit

from planner.solvers.compiled.heaps import drop, push

NONE = -1


@njit(cache=True)
def steps_under_way(wanted_s, size, context, step_s, sequence_s, token_s):
    """The fewest steps that take `wanted_s`, and the seconds that they do."""
    bend = token_s * size / 2.0
    part = step_s + sequence_s * size + token_s * context - bend
    steps = wanted_s / part if bend == 0.0 else (np.sqrt(part**2 + 4 * bend * wanted_s) - part) / (2 * bend)
    steps = np.ceil(steps - 1e-9)
    return steps, steps * part + bend * steps**2


@njit(cache=True)
def decode_s(steps, size, context, step_s, sequence_s, token_s):
    """Seconds of so many steps."""
    return steps * (step_s + sequence_s * size) + token_s * (steps * context + size * steps * (steps - 1) / 2)


def run_window(
    prompt_Q, output_Q, group, window, slots, step_s, sequence_s, token_s, prefill_tokens_per_s, kv_tokens, first_B,
    train_s_B, staleness, stop_s, delay_s, finish, running, size_R, assigned_R, reserved_R, context_R, steps_R, clock_R,
    stopped_s_R, event_s_R, first_R, last_R, next_Q, left_G, left_B, changed_R, started_s_Q, done_s_Q, sent_s_B,
):  # fmt: skip
    """Fills when every sample starts and is done, and when the weights of each batch are sent.

    Replicas are as many as `size_R` has. `finish` and `running` are heaps, `slots` for each replica, of the samples
    that run by the step that ends them.
    """
    num, replicas, batches = len(prompt_Q), len(size_R), len(train_s_B)
    event_s_R[:] = np.inf
    first_R[:] = NONE
    last_R[:] = NONE
    next_Q[:] = NONE
    left_G[:] = group
    left_G[-1] = num - (len(left_G) - 1) * group
    for batch in range(batches):
        left_B[batch] = first_B[batch + 1] - first_B[batch]
    head, now, opening = 0, 0.0, window
    handing, ending, sent, version = 0, 0, 0, 0  # batches handed out and ended in part, versions sent and arrived
    trained_s = sending_s = np.inf  # when the batch that is trained is, and when its weights are sent
    while sent < batches:
        while opening > 0 and head < num and handing <= version + staleness:
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
            while handing < batches - 1 and head >= first_B[handing + 1]:
                handing += 1
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
                steps, took_s = steps_under_way(now - clock_R[r], size, context_R[r], step_s, sequence_s, token_s)
                if steps >= finish[base] - steps_R[r]:
                    continue  # with that step samples are done
                clock_R[r] += took_s
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
                steps = finish[base] - steps_R[r]
                event_s_R[r] = clock_R[r] + decode_s(steps, size_R[r], context_R[r], step_s, sequence_s, token_s)
        if ending == sent and left_B[ending] == 0:
            trained_s, ending = now + train_s_B[ending], ending + 1
        r = np.argmin(event_s_R)
        arrived_s = sent_s_B[version] + delay_s if version < sent else np.inf
        next_s = min(trained_s, sending_s, arrived_s)
        if next_s <= event_s_R[r]:
            now = next_s
            if trained_s == now:
                trained_s, sending_s = np.inf, now + stop_s
                if stop_s > 0.0:
                    for r in range(replicas):
                        base, size = r * slots, size_R[r]
                        stopped_s_R[r] = now + stop_s
                        if size > 0 and clock_R[r] < now:
                            steps, took_s = steps_under_way(
                                now - clock_R[r], size, context_R[r], step_s, sequence_s, token_s
                            )
                            if steps >= finish[base] - steps_R[r]:
                                continue  # its samples are done before it stops
                            clock_R[r] += took_s
                            context_R[r] += size * steps
                            steps_R[r] += steps
                        clock_R[r] = max(clock_R[r], now + stop_s)
                        if size > 0:
                            steps = finish[base] - steps_R[r]
                            event_s_R[r] = clock_R[r] + decode_s(steps, size, context_R[r], step_s, sequence_s, token_s)
            elif sending_s == now:
                sent_s_B[sent] = now
                sent, sending_s = sent + 1, np.inf
            else:
                version += 1
            continue
        now, base = event_s_R[r], r * slots
        context_R[r] += size_R[r] * (finish[base] - steps_R[r])
        steps_R[r], clock_R[r], event_s_R[r] = finish[base], max(now, stopped_s_R[r]), np.inf
        changed_R[r] = True
        while size_R[r] > 0 and finish[base] == steps_R[r]:
            sample = running[base]
            done_s_Q[sample] = now
            drop(finish, running, base, size_R[r])
            size_R[r] -= 1
            assigned_R[r] -= 1
            context_R[r] -= prompt_Q[sample] + output_Q[sample]
            reserved_R[r] -= prompt_Q[sample] + output_Q[sample]
            left_G[sample // group] -= 1
            if left_G[sample // group] == 0:
                opening += 1
            batch = np.searchsorted(first_B, sample, side="right") - 1
            left_B[batch] -= 1
