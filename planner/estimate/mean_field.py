"""Mean-field estimate of a serving benchmark: the steady load if every request is the mean one, arrays [N].

What a benchmark does besides, its opening burst and the queues of unequal requests, `estimate.closed_loop` simulates.
Requests come from C clients that each wait for their answer (closed loop), or at a rate (open loop). With X requests
per second of the whole deployment and t_dec(D) = a + b D linear between two priced batches:
    colocated      TPOT = a + (b + s_pre / osl) D,   disaggregated   TPOT = a + b D,   D = X / ranks (osl - 1) TPOT
    TTFT           service + steps TPOT + wait(X) of an M/G/1 queue before prefill
    closed loop    X (TTFT + (osl - 1) TPOT) = C, solved for X by bisection (the left side grows with X)
Sequences that the KV cache cannot hold wait in front: D is capped, and what is left of C waits.
"""

from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats
from planner.solvers.stochastic.queueing import mean_wait_s

BISECTIONS = 50
NEAR_SATURATION = 0.98  # of the prefill server; beyond it requests queue as the clients' number says


@dataclass(frozen=True, slots=True)
class Dynamics:
    """What decides the loop [N]."""

    clients: Floats  # 0 where the load is open
    rate_per_s: Floats  # 0 where the load is closed
    osl: Floats
    decode_ranks: Floats  # attention ranks that decode, all instances together
    prefill_ranks: Floats
    decode_base_s: Floats  # a
    decode_slope_s: Floats  # b
    stretch_s: Floats  # s_pre of a colocated rank; 0 where prefill runs apart
    queue_s: Floats  # time that one request occupies a prefill rank
    service_s: Floats  # time to first token without waiting
    first_steps: Floats  # decode steps that pass before a prefill starts; 0 where prefill runs apart
    service_cv2: Floats
    most_decoding: Floats  # sequences per rank that the KV cache and the engine admit


@dataclass(frozen=True, slots=True)
class Settled:
    """The loop at rest [N]."""

    rate_per_s: Floats
    ttft_s: Floats
    tpot_s: Floats
    decoding: Floats  # sequences per decode rank


def settle(loop: Dynamics) -> Settled:
    """The rate at which the loop rests, and its times."""
    gaps = np.maximum(loop.osl - 1.0, 1.0)
    per_sequence = loop.decode_slope_s + loop.stretch_s / loop.osl
    most_tpot = loop.decode_base_s + per_sequence * loop.most_decoding
    by_decode = loop.most_decoding * loop.decode_ranks / (gaps * most_tpot)
    by_prefill = NEAR_SATURATION * loop.prefill_ranks / np.maximum(loop.queue_s, 1e-12)
    ceiling = np.minimum(by_decode, by_prefill)
    closed = loop.clients > 0
    low, high = np.zeros_like(ceiling), ceiling.copy()
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        pace = _tpot(loop, middle, gaps, per_sequence)
        present = middle * (_ttft(loop, middle, pace) + gaps * pace)
        under = present < loop.clients
        low, high = np.where(under, middle, low), np.where(under, high, middle)
    rate = np.where(closed, low, np.minimum(loop.rate_per_s, ceiling))
    tpot = _tpot(loop, rate, gaps, per_sequence)
    ttft = _ttft(loop, rate, tpot)
    full = rate >= ceiling * (1.0 - 1e-6)
    waiting = loop.clients / np.maximum(rate, 1e-12) - gaps * tpot
    ttft = np.where(closed & full, np.maximum(ttft, waiting), ttft)
    ttft = np.where(~closed & (loop.rate_per_s > ceiling), np.inf, ttft)
    decoding = rate / loop.decode_ranks * gaps * tpot
    return Settled(rate, ttft, tpot, decoding)


def _tpot(loop: Dynamics, rate: Floats, gaps: Floats, per_sequence: Floats) -> Floats:
    """TPOT = a + s D with D = x gaps TPOT, so TPOT = a / (1 - s x gaps); never fewer than one sequence's worth."""
    share = rate / loop.decode_ranks * gaps
    tpot = loop.decode_base_s / np.maximum(1.0 - per_sequence * share, 1e-3)
    return np.maximum(tpot, loop.decode_base_s + per_sequence)


def _ttft(loop: Dynamics, rate: Floats, tpot_s: Floats) -> Floats:
    joining = loop.service_s + loop.first_steps * tpot_s
    busy = np.minimum(rate / loop.prefill_ranks * loop.queue_s, NEAR_SATURATION)
    return joining + mean_wait_s(busy, 1.0, loop.queue_s, cv2_arrival=1.0, cv2_service=loop.service_cv2)
