"""Engines of several models that share a group of devices in turns, each with batches of its own (continuous batching).

As `shared_groups`, with requests of prompts and answers in place of single passes.
Sets        m in M models; c in C shapes; requests j with prompts p_j and answers a_j [tokens]
Parameters  B_m sequences of an engine at most, R_m tokens of its cache, P_m prompt tokens of a step
            d_cmbx [s] of a step in which b sequences of x tokens on average decode;  f_cmt [s] of a step of t prompt
            tokens;  limits of m on the time to the first token, between tokens, and to the last one
Rule        Of two groups of its model, drawn at random, a request goes to the one whose engine has fewer requests of
            the model in flight (power of two choices; the first of equals). A group takes one step at a time; after a
            step it is the turn of its next model that has work. A step takes the prompts that wait, whole and in
            order, up to P_m tokens and at least one, as far as B_m and R_m have room for the whole lengths; where none
            joins, all running sequences decode one token. Requests longer than R_m are refused; late ones go on.
MuxServe (Duan et al., ICML 2024) multiplexes engines in space and time; this is the latter, as SGLang's scheduler
orders steps without mixed chunks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from planner.arrays import Floats, Ints
from planner.solvers.placement.group_streams import Allowance, Group, Stream

if TYPE_CHECKING:
    from planner.solvers.compiled.batched_groups import Engines, Requests, Rules

NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, eq=False)
class Batches:
    """Engines of all models on groups of all shapes. M model, C shape, B sequences from 0 on, X contexts, T tokens."""

    most_M: Ints
    chunk_M: Ints
    room_M: Ints
    decode_s_CMBX: Floats
    context_X: Floats
    prefill_s_CMT: Floats
    prompt_T: Floats
    limit_s_M3: Floats  # to the first token, between tokens, to the last; inf for none


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """What becomes of the requests of a stream: times of first and last token [s], nan of refused ones; group, -1."""

    first_s_J: Floats
    last_s_J: Floats
    group_J: Ints
    late: int  # of those that are judged, by their weights


def simulated(
    batches: Batches, groups: Sequence[Group], stream: Stream, most: int = NEVER, allowance: Allowance | None = None
) -> Outcomes:
    """The requests of a stream with prompts and answers; times end where more than `most` are late.

    Late requests are taken off those of the allowance.
    """
    from planner.solvers.compiled.batched_groups import lost

    allowance = allowance or Allowance.free(len(batches.most_M))
    requests = _requests(stream)
    late = int(
        lost(_rules(batches, groups, allowance), requests, _idle(batches, groups, allowance), stream.first, most)
    )
    return Outcomes(requests.first_s_J, requests.last_s_J, requests.group_J, late)


def _rules(batches: Batches, groups: Sequence[Group], allowance: Allowance) -> "Rules":
    """What does not change while requests come."""
    from planner.solvers.compiled.batched_groups import Rules

    models = len(batches.most_M)
    hosts = [[g for g, group in enumerate(groups) if m in group.models] for m in range(models)]
    return Rules(
        _padded(hosts, max(len(groups), 1)),
        np.array([len(row) for row in hosts], dtype=np.int64),
        np.array([group.shape for group in groups], dtype=np.int64),
        _padded([group.models for group in groups], models),
        batches.most_M,
        batches.chunk_M,
        batches.room_M,
        batches.decode_s_CMBX,
        batches.context_X,
        batches.prefill_s_CMT,
        batches.prompt_T,
        batches.limit_s_M3,
        allowance.weight_M,
    )


def _requests(stream: Stream) -> "Requests":
    """Requests of which none is served yet."""
    from planner.solvers.compiled.batched_groups import Requests

    assert stream.prompt is not None
    assert stream.answer is not None
    count = len(stream)
    return Requests(
        stream.time_s,
        np.asarray(stream.model, dtype=np.int64),
        stream.prompt,
        stream.answer,
        np.full(count, np.nan),
        np.full(count, np.nan),
        np.full(count, -1, dtype=np.int64),
        np.full(count, -1, dtype=np.int64),
        np.zeros(count, dtype=np.int64),
        choices(count),
    )


def _idle(batches: Batches, groups: Sequence[Group], allowance: Allowance) -> "Engines":
    """Engines that have nothing to do."""
    from planner.solvers.compiled.batched_groups import IDLE, Engines

    number, models, most_running = max(len(groups), 1), len(batches.most_M), int(batches.most_M.max())
    return Engines(
        np.zeros(number),
        np.full(number, -1, dtype=np.int64),
        np.full(number, IDLE, dtype=np.int64),
        np.full((number, models), -1, dtype=np.int64),
        np.full((number, models), -1, dtype=np.int64),
        np.zeros((number, models, most_running), dtype=np.int64),
        np.zeros((number, models), dtype=np.int64),
        np.zeros((number, models), dtype=np.int64),
        np.zeros((number, models), dtype=np.int64),
        np.zeros((number, models), dtype=np.int64),
        np.zeros((number, models), dtype=np.int64),
        np.ones((number, models), dtype=np.int64),
        np.zeros((number, most_running), dtype=np.int64),
        np.zeros(number, dtype=np.int64),
        np.zeros((number, models), dtype=np.int64),
        allowance.late_M,
    )


@cache
def choices(count: int) -> Floats:
    """Draws u, v in [0, 1) of the two groups of each request: of h hosts the one at u h, and that 1 + v (h - 1) on.

    They are the same for every placement (common random numbers). [J, 2]
    """
    return np.random.default_rng(0).random((count, 2))


def _padded(rows: Sequence[Sequence[int]], width: int) -> Ints:
    """Rows of indices, with -1 behind their ends."""
    table = np.full((max(len(rows), 1), width), -1, dtype=np.int64)
    for index, row in enumerate(rows):
        table[index, : len(row)] = row
    return table
