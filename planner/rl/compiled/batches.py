"""Simulates servers that take samples in batches from one queue, in the order in which they come.

Suffix: Q samples by when they come.
"""

import numpy as np

from planner.arrays import Floats, Ints
from planner.solvers.compiled.machine_code.loop import Loop

_LOOP = Loop("planner.rl.compiled.batches_loop", "run_batches")


def run_batches(ready_s_Q: Floats, tokens_Q: Ints, servers: int, batch: int, step_s: float, token_s: float) -> Floats:
    """When every sample is done [Q], seconds; a batch of t tokens takes step_s + token_s t.

    A server that is free takes what waits, at most `batch` samples, and waits for none: of several that are free the
    one that was first.
    """
    done_s_Q = np.zeros(len(ready_s_Q))
    _LOOP(
        np.ascontiguousarray(ready_s_Q, float),
        np.ascontiguousarray(tokens_Q, np.int64),
        batch,
        float(step_s),
        float(token_s),
        np.zeros(servers),
        done_s_Q,
    )
    return done_s_Q
