"""Step times by multilinear table lookup, with a fixed order of operations, so that results are bit-identical."""

import numpy as np

from planner.arrays import Floats
from planner.simulate.loop.fields import ASYNCHRONOUS, CONTEXT, SEQUENCES, START, TABLE
from planner.simulate.loop.program import compiled
from planner.simulate.loop.state import RunState

BATCH, CONTEXTS, TOKENS, ATTENDED, RANK_TOKENS = 0, 1, 2, 3, 4  # the axes of a table


@compiled
def bracket(axis: Floats, length: int, point: float) -> int:
    """The last place of an axis that is not above a point, but one that has a place after it."""
    low, high = 0, length - 1
    while high - low > 1:
        middle = (low + high) // 2
        if axis[middle] <= point:
            low = middle
        else:
            high = middle
    return low


@compiled
def share(axis: Floats, length: int, low: int, point: float) -> float:
    """How far a point lies from one place of an axis to the next; 0 on an axis of one place."""
    if length == 1:
        return 0.0
    return float((point - axis[low]) / (axis[low + 1] - axis[low]))


@compiled
def mixed_step_s(s: RunState, i: int, sequences: int, tokens: int, attended: float) -> float:
    """Seconds of a step that decodes so many sequences and prefills tokens that attend to so many each on average."""
    table = s.instance[i, TABLE]
    axes, lengths = s.axes[table], s.lengths[table]
    context = s.instance[i, CONTEXT] / s.instance[i, SEQUENCES] if sequences > 0 else axes[CONTEXTS, 0]
    b = bracket(axes[BATCH], lengths[BATCH], float(sequences))
    c = bracket(axes[CONTEXTS], lengths[CONTEXTS], context)
    t = bracket(axes[TOKENS], lengths[TOKENS], float(tokens))
    m = bracket(axes[ATTENDED], lengths[ATTENDED], attended)
    share_b = share(axes[BATCH], lengths[BATCH], b, float(sequences))
    share_c = share(axes[CONTEXTS], lengths[CONTEXTS], c, context)
    share_t = share(axes[TOKENS], lengths[TOKENS], t, float(tokens))
    share_m = share(axes[ATTENDED], lengths[ATTENDED], m, attended)
    seconds = 0.0
    for corner in range(16):
        up_b, up_c, up_t, up_m = corner & 1, corner >> 1 & 1, corner >> 2 & 1, corner >> 3 & 1
        weight = share_b if up_b else 1.0 - share_b
        weight *= share_c if up_c else 1.0 - share_c
        weight *= share_t if up_t else 1.0 - share_t
        weight *= share_m if up_m else 1.0 - share_m
        if weight != 0.0:
            seconds += weight * s.mixed_s[table, b + up_b, c + up_c, t + up_t, m + up_m]
    return seconds


@compiled
def of_rank_tokens(s: RunState, seconds: Floats, i: int, tokens: float) -> float:
    """Seconds [K, J] at so many new tokens: joint ones of the mean instance of a group, or the least of one."""
    table = s.instance[i, TABLE]
    axis, length = s.axes[table, RANK_TOKENS], s.lengths[table, RANK_TOKENS]
    low = bracket(axis, length, tokens)
    up = share(axis, length, low, tokens)
    lower_s = seconds[table, low]
    return float(lower_s + up * (seconds[table, low + 1] - lower_s)) if up != 0.0 else float(lower_s)


@compiled
def decode_step_s(s: RunState, i: int, context: int) -> float:
    """Seconds of a decode step of the batch at so many tokens of context of all its sequences."""
    table = s.instance[i, TABLE]
    axis, length, seconds = (
        s.axes[table, CONTEXTS],
        s.lengths[table, CONTEXTS],
        s.decode_s[table, s.instance[i, SEQUENCES]],
    )
    mean = context / s.instance[i, SEQUENCES]
    low = bracket(axis, length, mean)
    up = share(axis, length, low, mean)
    return float(seconds[low] + up * (seconds[low + 1] - seconds[low])) if up != 0.0 else float(seconds[low])


@compiled
def decode_steps(s: RunState, i: int, most: int, until_s: float) -> tuple[int, float, float]:
    """Decode steps from the start of the stretch, up to so many or the first that ends at `until_s` or later.

    Where the next step is formed while one runs, it is the first that starts then. Returns how many, and when the last
    of them starts and ends.
    """
    sequences, context = s.instance[i, SEQUENCES], s.instance[i, CONTEXT]
    table, length = s.instance[i, TABLE], s.lengths[s.instance[i, TABLE], CONTEXTS]
    axis, seconds = s.axes[table, CONTEXTS], s.decode_s[table, sequences]
    last_s = now_s = s.instance_s[i, START]
    ahead, done = s.instance[i, ASYNCHRONOUS] == 1, 0
    mean = context / sequences
    while done < most:
        low = bracket(axis, length, mean)
        start_s, origin, slope, end = seconds[low], axis[low], 0.0, np.inf
        if length > 1:
            slope = (seconds[low + 1] - start_s) / (axis[low + 1] - origin)
        if low + 2 < length:
            end = axis[low + 1]
        while done < most and mean < end:
            last_s = now_s
            now_s += start_s + slope * (mean - origin)
            done += 1
            mean = (context + sequences * done) / sequences
            if now_s >= until_s and (not ahead or last_s >= until_s):
                return done, last_s, now_s
    return done, last_s, now_s
