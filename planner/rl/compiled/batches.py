"""Simulates servers that take samples in batches from one queue, in the order in which they come (numba).

Suffixes: Q samples by when they come, S servers.
"""

import numpy as np
from numba import njit


@njit(cache=True)
def run_batches(ready_s_Q, tokens_Q, servers, batch, step_s, token_s):
    """When every sample is done [Q], seconds; a batch of t tokens takes step_s + token_s t.

    A server that is free takes what waits, at most `batch` samples, and waits for none: of several that are free the
    one that was first.
    """
    num = len(ready_s_Q)
    done_s_Q = np.zeros(num)
    free_s_S = np.zeros(servers)
    head = 0
    while head < num:
        s = np.argmin(free_s_S)
        start_s = max(free_s_S[s], ready_s_Q[head])
        end, tokens = head, 0
        while end < num and end - head < batch and ready_s_Q[end] <= start_s:
            tokens += tokens_Q[end]
            end += 1
        free_s_S[s] = start_s + step_s + token_s * tokens
        done_s_Q[head:end] = free_s_S[s]
        head = end
    return done_s_Q
