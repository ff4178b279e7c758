"""Simulates samples that are handed out continuously, a window of groups at a time, on equal replicas.

Q samples in the order in which they are handed out.
"""

import numpy as np

from planner.arrays import Floats, Ints
from planner.rl.compiled.queue import rates_of
from planner.rl.curves import DecodeCurve
from planner.solvers.compiled.machine_code.loop import Loop

_LOOP = Loop("planner.rl.compiled.window_loop", "run_window", ("planner.solvers.compiled.heaps",))


def run_window(
    prompt_Q: Ints, output_Q: Ints, group: int, window: int, replicas: int, curve: DecodeCurve
) -> tuple[Floats, Floats]:
    """When every sample starts and is done [Q], seconds.

    `window` groups of `group` consecutive samples are under way at a time; the next one is handed out when all samples
    of one are done. A sample goes to the replica that has the fewest, the first of those, and waits there in line. A
    replica takes in those that wait between two steps, and prefills them before it goes on.
    """
    num = len(prompt_Q)
    slots = min(curve.max_running, num)
    started_s_Q, done_s_Q = np.zeros(num), np.zeros(num)
    _LOOP(
        np.ascontiguousarray(prompt_Q, np.int64),
        np.ascontiguousarray(output_Q, np.int64),
        group,
        window,
        slots,
        *rates_of(curve),
        curve.kv_tokens,
        np.empty(replicas * slots),
        np.empty(replicas * slots, np.int64),
        *np.zeros((3, replicas), np.int64),
        *np.zeros((4, replicas)),
        *np.empty((2, replicas), np.int64),
        np.empty(num, np.int64),
        np.empty((num + group - 1) // group, np.int64),
        np.zeros(replicas, np.bool_),
        started_s_Q,
        done_s_Q,
    )
    return started_s_Q, done_s_Q
