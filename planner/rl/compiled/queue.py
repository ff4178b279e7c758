"""Simulates single-turn samples from a shared queue on equal replicas with continuous batching.

Q samples in the order of the queue.
"""

import numpy as np

from planner.arrays import Floats, Ints
from planner.rl.curves import DecodeCurve
from planner.solvers.compiled.machine_code.loop import Loop

USES = ("planner.rl.compiled.segments", "planner.solvers.compiled.heaps", "planner.solvers.compilation.parts")
_LOOP = Loop("planner.rl.compiled.queue_loop", "run_queue", USES)


def rates_of(curve: DecodeCurve) -> tuple[float, float, float, float]:
    """Seconds of a step, by sequence and by token of context, and prompt tokens a second, as loops take them."""
    step = (float(curve.step_s), float(curve.sequence_s), float(curve.token_s))
    return (*step, float(curve.prefill_tokens_per_s))


def run_queue(prompt_Q: Ints, output_Q: Ints, replicas: int, curve: DecodeCurve) -> Floats:
    """When every sample of the queue is done [Q], seconds."""
    num = len(prompt_Q)
    replicas = min(replicas, num)  # the first deal reaches one replica a sample
    slots = min(curve.max_running, num)
    done_s_Q = np.zeros(num)
    _LOOP(
        np.ascontiguousarray(prompt_Q, np.int64),
        np.ascontiguousarray(output_Q, np.int64),
        slots,
        *rates_of(curve),
        curve.kv_tokens,
        np.empty(replicas * slots),
        np.empty(replicas * slots, np.int64),
        np.zeros(replicas, np.int64),
        np.zeros(replicas),
        np.zeros(replicas, np.int64),
        np.zeros(replicas),
        np.empty(replicas),
        np.empty(replicas, np.int64),
        done_s_Q,
    )
    return done_s_Q
