"""Simulates samples that are handed out continuously, a window of groups at a time, on equal replicas.

Suffixes: Q samples in the order in which they are handed out, B batches of them in a row, K services, V their servers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats, Ints
from planner.rl.compiled.queue import USES, rates_of
from planner.rl.curves import DecodeCurve, Service
from planner.solvers.compiled.machine_code.loop import Loop

_LOOP = Loop("planner.rl.compiled.window_loop", "run_window", USES)


@dataclass(frozen=True, slots=True, eq=False)
class Trainer:
    """Takes up batches in turn, each once all its samples are done, and sends weights after each.

    Batch b may be handed out once the weights of batch b - `staleness` - 1 have arrived, `delay_s` after they are sent.
    Sending takes `stop_s`, for which all replicas stop at the end of their step.
    """

    size_B: Ints
    train_s_B: Floats
    staleness: int
    stop_s: float = 0.0
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Flown:
    """When every sample starts, is generated and can be trained on [Q], and weights of each batch are sent [B]."""

    started_s_Q: Floats
    done_s_Q: Floats
    scored_s_Q: Floats
    sent_s_B: Floats


def run_window(
    prompt_Q: Ints,
    output_Q: Ints,
    group: int,
    window: int,
    replicas: int,
    curve: DecodeCurve,
    trainer: Trainer,
    services: Sequence[Service] = (),
) -> Flown:
    """Seconds from the start.

    `window` groups of `group` consecutive samples are under way at a time; the next one is handed out when all samples
    of one can be trained on. A sample goes to the replica that has the fewest, the first of those, and waits there in
    line. A replica takes in those that wait between two steps, and prefills them before it goes on. A sample that is
    generated waits in line at each of the `services`, whose free servers take what waits, at most a batch, and can be
    trained on once all have scored it. Each of the jobs that share a service sends as much at the same times, before
    this one.
    """
    num, batches = len(prompt_Q), len(trainer.size_B)
    slots = min(curve.max_running, num)
    flown = Flown(np.zeros(num), np.zeros(num), np.zeros(num), np.zeros(batches))
    _LOOP(
        np.ascontiguousarray(prompt_Q, np.int64),
        np.ascontiguousarray(output_Q, np.int64),
        group,
        window,
        slots,
        *rates_of(curve),
        curve.kv_tokens,
        np.append(0, np.cumsum(trainer.size_B, dtype=np.int64)),
        np.ascontiguousarray(trainer.train_s_B, float),
        trainer.staleness,
        float(trainer.stop_s),
        float(trainer.delay_s),
        np.empty(replicas * slots),
        np.empty(replicas * slots, np.int64),
        *np.zeros((3, replicas), np.int64),
        *np.zeros((5, replicas)),
        *np.empty((2, replicas), np.int64),
        np.empty(num, np.int64),
        np.empty((num + group - 1) // group, np.int64),
        np.empty(batches, np.int64),
        np.zeros(replicas, np.bool_),
        *_servers(services, num),
        np.empty(num, np.int64),
        flown.started_s_Q,
        flown.done_s_Q,
        flown.scored_s_Q,
        flown.sent_s_B,
    )
    return flown


def _servers(services: Sequence[Service], num: int) -> tuple[Ints | Floats, ...]:
    """Arrays of the loop's `Servers`: services by server, what they are [K], their lines, and what servers do [V]."""
    service_V = np.repeat(np.arange(len(services)), np.array([service.servers for service in services], np.int64))
    return (
        service_V,
        np.array([service.batch for service in services], np.int64),
        np.array([service.step_s for service in services], float),
        np.array([service.token_s for service in services], float),
        np.array([service.shared_by for service in services], np.int64),
        np.zeros((len(services), num), np.int64),
        *np.zeros((2, len(services)), np.int64),
        np.zeros(len(service_V)),
        *np.zeros((2, len(service_V)), np.int64),
    )
