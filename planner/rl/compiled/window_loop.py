"""The loop of `window`, for numba.

Suffixes: Q samples in the order in which they are handed out, R replicas, G groups. Between two events of a replica k
steps with b sequences holding S tokens take k (step + sequence b) + token (k S + b k (k - 1) / 2), as in `queue_loop`.
"""

import numpy as np

from planner.solvers.compiled.heaps import drop, push

NONE = -1


def run_window(
    prompt_Q, output_Q, group, window, slots, step_s, sequence_s, token_s, prefill_tokens_per_s, kv_tokens, finish,
    running, size_R, assigned_R, reserved_R, context_R, steps_R, clock_R, event_s_R, first_R, last_R, next_Q, left_G,
    changed_R, started_s_Q, done_s_Q,
):  # fmt: skip
    """Fills when every sample starts and is done; replicas are as many as `size_R` has.

    `finish` and `running` are heaps, `slots` for each replica, of the samples that run by the step that ends them.
    """
    num, replicas = len(prompt_Q), len(size_R)
    event_s_R[:] = np.inf
    first_R[:] = NONE
    last_R[:] = NONE
    next_Q[:] = NONE
    left_G[:] = group
    left_G[-1] = num - (len(left_G) - 1) * group
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
