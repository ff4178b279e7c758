"""Overlap of communication with computation: the part of an exchange that the product next to it hides, by shape.

Three ways, each a line of two stages (computing and moving) that pieces pass one after the other:

- Fused tiles: the kernel of a product stores every tile of its output to the rank that sums it, or waits tile by tile
  for its input (FLUX, Chang et al., arXiv:2406.06858, section 3). Tiles finish wave by wave over the multiprocessors,
  so waves are the pieces. With one wave nothing is hidden; 96 % is the most that FLUX hid anywhere (its abstract), and
  here it is a cap.
- Split products: the ring of a gather or scatter cut into one product a rank (Wang et al., ASPLOS 2023, "Overlap
  Communication with Dependent Computation via Decomposition"; TransformerEngine's user buffers, PyTorch's asynchronous
  tensor parallelism). The ranks are the pieces. Pieces of a short product leave multiprocessors idle, less so as two of
  them run side by side.
- Two batches: a step cut in halves, of which one computes while the other is exchanged (DeepSeek-V3, arXiv:2412.19437,
  section 3.4; SGLang's two-batch overlap, vLLM's dual-batch overlap).

Arrays are over points [N] and broadcast.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from planner.arrays import Floats
from planner.costs.operators.work import Work

Numbers: TypeAlias = Floats | float
MOST_HIDDEN = 0.96
TILE_SHAPES = ((128, 256), (256, 128), (128, 128))
"""Rows and columns of the output tiles that libraries choose among for large products."""
EXCHANGE_MULTIPROCESSORS = 20
"""What DeepSeek's kernels set aside for a bulk exchange between experts (arXiv:2412.19437, section 3.2.2)."""


def waves(m: Numbers, n: Numbers, multiprocessors: int) -> Floats:
    """Waves [N] in which the tiles of an [m, n] output finish, of the tile shape that takes least; 1 where unknown."""
    return fastest_tiles(m, n, multiprocessors)[1]


def fastest_tiles(m: Numbers, n: Numbers, multiprocessors: int, outputs: float = 1.0) -> tuple[Floats, Floats]:
    """Output elements [N] that a multiprocessor has room for, and waves [N], of the tiles with least room.

    So many `outputs` of one shape are computed side by side.
    """
    rows, columns = np.broadcast_arrays(np.asarray(m, dtype=np.float64), np.asarray(n, dtype=np.float64))
    room, count = np.full(rows.shape, math.inf), np.ones(rows.shape)
    for high, wide in TILE_SHAPES:
        turns = np.ceil(outputs * np.ceil(rows / high) * np.ceil(columns / wide) / max(multiprocessors, 1))
        better = turns * high * wide < room
        count, room = np.where(better, turns, count), np.where(better, turns * high * wide, room)
    return room, np.maximum(count, 1.0) if multiprocessors else np.ones(rows.shape)


def flow_line_s(compute_s: Numbers, transfer_s: Numbers, pieces: Numbers) -> Floats:
    """Seconds [N] until the last of equal pieces has passed both stages: the slower stage, and one piece of the other.

    p pieces of c and t each take c + (p - 1) max(c, t) + t, whichever stage comes first.
    """
    return np.asarray(np.maximum(compute_s, transfer_s) + np.minimum(compute_s, transfer_s) / pieces)


def fused_s(compute_s: Numbers, transfer_s: Numbers, pieces: Numbers) -> Floats:
    """Seconds [N] of a product with its exchange inside, in so many waves; at most `MOST_HIDDEN` of it is hidden."""
    hidden = compute_s + transfer_s - flow_line_s(compute_s, transfer_s, pieces)
    return np.asarray(compute_s + transfer_s - np.minimum(hidden, MOST_HIDDEN * transfer_s))


def split_s(
    compute_s: Numbers, transfer_s: Numbers, pieces: Numbers, slowdown: Numbers = 1.0, start_s: Numbers = 0.0
) -> Floats:
    """Seconds [N] of a product cut into one piece a rank, each moved beside the product of the one before it.

    `slowdown` is how much longer the pieces take together than the whole product, `start_s` what each costs besides.
    """
    return np.asarray(flow_line_s(compute_s * slowdown, transfer_s, pieces) + pieces * start_s)


def cycle_s(stages: Sequence[Floats], micro_batches: Floats | float) -> Floats:
    """Seconds of a step of all layers [N] when micro-batches take turns at the stages.

    The busiest stage sets the pace of a layer, unless one micro-batch alone takes longer for its round. Stages are the
    sums over layers for one micro-batch; layers are taken to be alike.
    """
    busiest = np.maximum.reduce(list(stages))
    return np.asarray(np.maximum(micro_batches * busiest, sum(stages)), dtype=np.float64)


def slowed_by_exchange(multiprocessors: int) -> float:
    """How much longer computing takes beside a bulk exchange between experts; no longer where the width is unknown."""
    left = multiprocessors - EXCHANGE_MULTIPROCESSORS
    return multiprocessors / left if left > 0 else 1.0


def halved(work: Work) -> Work:
    """One of two equal batches that a step is cut into; a lone prompt is cut in chunks, one behind the other [N]."""
    several = work.prefill_sequences >= 2.0
    tokens = work.prefill_tokens / 2.0
    return replace(
        work,
        prefill_tokens=tokens,
        prefill_sequences=np.where(several, work.prefill_sequences / 2.0, work.prefill_sequences),
        prefill_context=work.prefill_context + np.where(several, 0.0, tokens / 2.0),
        decode_sequences=work.decode_sequences / 2.0,
        rank_tokens=None if work.rank_tokens is None else work.rank_tokens / 2.0,
    )
