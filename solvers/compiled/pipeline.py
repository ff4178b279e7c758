"""Pipeline schedules in order and in time (numba): each rank does its next pass when its inputs are there."""

import numpy as np
from numba import njit

from planner.solvers.compilation.kept import kept
from planner.solvers.compilation.parts import part
from planner.solvers.pass_orders import fill_phases, fill_rounds

_rounds = part(fill_rounds)
_phases = part(fill_phases)


@kept
@njit
def rounds(ranks, chunks, batches):
    """Rows [R, N, 3] under 1F1B and its interleaved form."""
    out = np.zeros((ranks, 2 * chunks * batches, 3), np.int64)
    for rank in range(ranks):
        _rounds(ranks, chunks, batches, rank, out[rank])
    return out


@kept
@njit
def phases(program_RPK, arms_RA3, most):
    """Rows [R, most, 3] and how many of them [R] from the phases of each rank."""
    R = len(program_RPK)
    out = np.zeros((R, most, 3), np.int64)
    count_R = np.zeros(R, np.int64)
    for rank in range(R):
        count_R[rank] = _phases(program_RPK[rank], arms_RA3[rank], out[rank])
    return out, count_R


@kept
@njit
def simulate(row_RN3, count_R, batches, forward_S, input_S, weight_S, joined_S, handover_S, start_RN):
    """Fills `start_RN`; returns (end_R, busy_R), or empty arrays where ranks wait for each other for ever.

    joined_S: seconds saved where the forward pass of a stage runs together with a backward pass. handover_S: from the
    end of a pass of stage s to when the next stage has it, and back.
    """
    R, S = len(row_RN3), len(forward_S)
    done_FS = np.full((2, S, batches), -1.0)
    place_R = np.zeros(R, np.int64)
    free_R, busy_R = np.zeros(R), np.zeros(R)
    left = 0
    for r in range(R):
        left += count_R[r]
    while left > 0:
        before = left
        for r in range(R):
            while place_R[r] < count_R[r]:
                n = place_R[r]
                rows = 2 if row_RN3[r, n, 0] == 4 else 1
                ready, took, waits = free_R[r], 0.0, False
                for k in range(n, n + rows):
                    kind, s, b = row_RN3[r, k, 0], row_RN3[r, k, 1], row_RN3[r, k, 2]
                    if kind == 0 or kind == 4:
                        took += forward_S[s] - (joined_S[s] if kind == 4 else 0.0)
                        if s > 0:
                            arrived = done_FS[0, s - 1, b]
                            waits = waits or arrived < 0.0
                            ready = max(ready, arrived + handover_S[s - 1])
                    elif kind == 3:
                        took += weight_S[s]
                    else:
                        took += input_S[s] + (weight_S[s] if kind == 1 else 0.0)
                        if s < S - 1:
                            arrived = done_FS[1, s + 1, b]
                            waits = waits or arrived < 0.0
                            ready = max(ready, arrived + handover_S[s])
                        else:
                            arrived = done_FS[0, s, b]
                            waits = waits or arrived < 0.0
                            ready = max(ready, arrived)
                if waits:
                    break
                end = ready + took
                for k in range(n, n + rows):
                    kind = row_RN3[r, k, 0]
                    start_RN[r, k] = ready
                    if kind != 3:
                        done_FS[1 if kind == 1 or kind == 2 else 0, row_RN3[r, k, 1], row_RN3[r, k, 2]] = end
                free_R[r] = end
                busy_R[r] += took
                place_R[r] = n + rows
                left -= rows
        if left == before:
            return np.zeros(0), np.zeros(0)
    return free_R, busy_R


@kept
@njit
def fill_resident(row_RN3, count_R, resident_S, kept_S, level_RN):
    """Fills `level_RN` with what is resident on each rank during each pass.

    A forward pass takes resident_S of its stage; the gradient of the inputs gives back all but kept_S, that of the
    weights the rest. A whole backward pass gives back all of it, when it ends.
    """
    for r in range(len(row_RN3)):
        level = 0.0
        for n in range(count_R[r]):
            kind, s = row_RN3[r, n, 0], row_RN3[r, n, 1]
            if kind == 0 or kind == 4:
                level += resident_S[s]
            level_RN[r, n] = level
            if kind == 1:
                level -= resident_S[s]
            elif kind == 2:
                level -= resident_S[s] - kept_S[s]
            elif kind == 3:
                level -= kept_S[s]
