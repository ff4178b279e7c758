"""The loop of `batches`, for numba. Suffixes: Q samples by when they come, S servers."""

import numpy as np


def run_batches(ready_s_Q, tokens_Q, batch, step_s, token_s, free_s_S, done_s_Q):
    """Fills when every sample is done; `free_s_S` says when each server is free, and is changed."""
    num = len(ready_s_Q)
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
