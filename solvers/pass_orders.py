"""Pipeline schedules (1F1B, interleaved, ZB-H1/H2/V, DualPipe): order of passes as rows (kind, stage, micro-batch).

Rank r of R holds stages r, r + R, ... where passes go round and round; stages r and 2R - 1 - r where they go there and
back (`zb_v`, `dualpipev`); and stages r and R - 1 - r where micro-batches enter at both ends (`dualpipe`, whose first
half of the micro-batches enters at stage 0 on rank 0, the other on rank R - 1). A backward pass is whole, or split into
the gradient of the inputs and that of the weights, which nobody waits for.

Sources: 1F1B and its interleaved form, Narayanan et al., SC 2021, arXiv:2104.04473, section 2.2. ZB-H1 and ZB-H2: Qi et
al., arXiv:2401.10241, section 2.3. ZB-V: Qi et al., arXiv:2405.15362, section 3. DualPipe: DeepSeek-V3,
arXiv:2412.19437, section 3.2.1; DualPipeV folds its two copies of the model into one.

`fill_rounds` and `fill_phases` are plain loops over whole numbers, so that they run as they stand and compiled
(`planner.solvers.compiled.pipeline`).
"""

from typing import Any

FORWARD, BACKWARD, INPUT, WEIGHT, JOINED = range(5)
"""Kinds of passes; BACKWARD = INPUT + WEIGHT at once, JOINED = a forward pass run together with the row after it."""
ROUNDS = ("1f1b", "interleaved")
CHUNKS = {"zb_v": 2, "dualpipev": 2, "1f1b": 1, "zb_h1": 1, "zb_h2": 1, "dualpipe": 1}
"""Chunks of the model per rank where the schedule fixes them."""

Step = tuple[int, int]  # kind of pass, arm; a WEIGHT pass takes the oldest that waits, of whichever arm
Phase = tuple[int, tuple[Step, ...]]  # so many times these steps
F0, F1, J0, J1 = (FORWARD, 0), (FORWARD, 1), (JOINED, 0), (JOINED, 1)
B0, B1, I0, I1, W = (BACKWARD, 0), (BACKWARD, 1), (INPUT, 0), (INPUT, 1), (WEIGHT, 0)


def fill_rounds(ranks: int, chunks: int, batches: int, rank: int, out: Any) -> int:  # noqa: ANN401 - array or lists
    """Rows of one rank under 1F1B into `out` [2 x chunks x batches, 3]; returns how many.

    Forward passes until the first gradient is due, then one of each, then the backward passes that are left. With
    several chunks micro-batches go through in rounds of about `ranks`, each chunk in turn.
    """
    together = batches // max(batches // ranks, 1) if chunks > 1 else batches
    total = chunks * batches
    ahead = ranks - 1 - rank
    if chunks > 1:
        ahead = (chunks - 1) * together + 2 * ahead
    ahead = min(ahead, total)
    row = 0
    for step in range(ahead + total):
        for backward in range(2):
            index = step - ahead if backward else step
            if index < 0 or index >= total:
                continue
            turn = index // (together * chunks)
            place = index - turn * together * chunks
            width = min(together, batches - turn * together)
            chunk = place // width
            if backward:
                out[row][0], out[row][1] = 1, rank + (chunks - 1 - chunk) * ranks
            else:
                out[row][0], out[row][1] = 0, rank + chunk * ranks
            out[row][2] = turn * together + place - chunk * width
            row += 1
    return row


def fill_phases(phases: Any, arms: Any, out: Any) -> int:  # noqa: ANN401 - arrays or lists
    """Rows of one rank from its phases into `out` [N, 3]; returns how many.

    phases: rows of (times, number of steps, kind, arm, kind, arm, ...). arms: (stage, first micro-batch, number of
    micro-batches) of each arm. Steps of micro-batches beyond the last are left out; weights that still wait come last.
    """
    forward, backward, row, first, last = [0, 0], [0, 0], 0, 0, 0
    most = arms[0][2] + arms[1][2]
    waiting = [0] * (2 * most)
    for phase in phases:
        for _ in range(phase[0]):
            for step in range(phase[1]):
                kind, arm = phase[2 + 2 * step], phase[3 + 2 * step]
                if kind == 3:
                    if first < last:
                        out[row][0], out[row][1], out[row][2] = 3, waiting[2 * first], waiting[2 * first + 1]
                        first, row = first + 1, row + 1
                    continue
                counts = forward if kind == 0 or kind == 4 else backward
                if counts[arm] >= arms[arm][2]:
                    continue
                out[row][0], out[row][1], out[row][2] = kind, arms[arm][0], arms[arm][1] + counts[arm]
                if kind == 2:
                    waiting[2 * last], waiting[2 * last + 1] = out[row][1], out[row][2]
                    last += 1
                counts[arm] += 1
                row += 1
    for index in range(first, last):
        out[row][0], out[row][1], out[row][2] = 3, waiting[2 * index], waiting[2 * index + 1]
        row += 1
    return row


def phases_of(schedule: str, ranks: int, batches: int, rank: int) -> tuple[list[Phase], list[tuple[int, int, int]]]:
    """Phases of one rank, and its arms, under a schedule that is none of `ROUNDS`."""
    if schedule in ("zb_h1", "zb_h2"):
        return _zb_h(2 if schedule == "zb_h2" else 1, ranks, batches, rank), [(rank, 0, batches), (rank, 0, 0)]
    second = 2 * ranks - 1 - rank
    if schedule == "zb_v":
        return _zb_v(ranks, batches, rank), [(rank, 0, batches), (second, 0, batches)]
    if schedule == "dualpipev":
        return _dualpipe(ranks, batches, rank), [(rank, 0, batches), (second, 0, batches)]
    half, each = ranks // 2, batches // 2
    arms = [(rank, 0, each), (ranks - 1 - rank, each, batches - each)]
    if rank >= half:
        arms.reverse()
    return _dualpipe(half, each, min(rank, ranks - 1 - rank)), arms


def _zb_h(depth: int, ranks: int, batches: int, rank: int) -> list[Phase]:
    """ZB-H1 (`depth` 1) and ZB-H2 (2): later ranks put off more gradients of weights.

    So the first micro-batch's gradient comes back sooner, and the weights fill the wait at the end.
    """
    ahead, lag = depth * (ranks - rank) - (depth - 1), min(rank * depth, batches)
    return [(ahead, (F0,)), (lag, (I0, F0)), (batches - lag, (I0, W, F0))]


def _zb_v(ranks: int, batches: int, rank: int) -> list[Phase]:
    """Down the V; both arms in turn; first gradients of the second arm; the steady state; gradients of inputs first."""
    most = max(2 * ranks - 1, batches)
    return [
        (2 * (ranks - rank) - 1, (F0,)),
        (rank, (F1, F0)),
        (ranks - rank, (F1, I1, W)),
        (most - ranks, (F0, I0, W, F1, I1, W)),
        (rank, (I0, I1)),
        (ranks - rank, (I0, W)),
    ]


def _dualpipe(half: int, each: int, near: int) -> list[Phase]:
    """Each forward pass of the steady state runs with a backward pass; `near` ranks are between rank and its end.

    The rank at the turn does not join the first pair, which would wait for itself. In the run-down the second half of
    the backward passes leaves its weights for later.
    """
    left, steady, turn = half - near - 1, each - 2 * half + near + 1, (near + 1) // 2
    first = (F0 if left == 0 else J0, B1, J1, B0)
    return [
        (2 * left, (F0,)),
        (near + 1, (F0, F1)),
        (left, (I1, W, F1)),
        (min(steady, 1), first),
        (steady - 1, (J0, B1, J1, B0)),
        (left, (B1, J1, B0)),
        (turn, (B1, B0)),
        (1, (I1, I0) if near % 2 else (B1, I0)),
        (near - turn, (I1, I0)),
        (left, (W, I0)),
    ]
