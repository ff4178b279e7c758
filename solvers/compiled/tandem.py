"""First-come queues in a row, and what they make of streams (numba). R request, J job."""

import numpy as np
from numba import njit

from planner.solvers.compilation.kept import kept
from planner.solvers.compiled.heaps import drop, push


@kept
@njit
def starts(ready_s_J, service_s_J, servers):
    """Starts of jobs that equal servers take in the order in which they are ready, of equals the first listed."""
    order = np.argsort(ready_s_J, kind="mergesort")
    keys, items = np.zeros(servers), np.arange(servers)
    start_s_J = np.empty(len(ready_s_J))
    for place in range(len(order)):
        job = order[place]
        server = items[0]
        start_s = max(ready_s_J[job], keys[0])
        start_s_J[job] = start_s
        drop(keys, items, 0, servers)
        push(keys, items, 0, servers - 1, start_s + service_s_J[job], server)
    return start_s_J


@kept
@njit
def chunks(begin_s_R, tokens_R, step_s, first, rest):
    """Chunks of replies: when each is ready, whose it is, its tokens, and the tokens before it."""
    count = 0
    for r in range(len(tokens_R)):
        count += 1 if tokens_R[r] <= first else 1 + (tokens_R[r] - first + rest - 1) // rest
    ready_s_J, owner_J = np.empty(count), np.empty(count, np.int64)
    tokens_J, before_J = np.empty(count, np.int64), np.empty(count, np.int64)
    j = 0
    for r in range(len(tokens_R)):
        done = 0
        while done < tokens_R[r]:
            tokens = min(first if done == 0 else rest, tokens_R[r] - done)
            owner_J[j], tokens_J[j], before_J[j] = r, tokens, done
            done += tokens
            ready_s_J[j] = begin_s_R[r] + done * step_s
            j += 1
    return ready_s_J, owner_J, tokens_J, before_J
