"""Throughput scheduling on one machine (numba), release and deadline in one order: jobs that can be on time. J job."""

import numpy as np
from numba import njit


@njit(cache=True)
def most_on_time(release_J, deadline_J, work_J, cap):
    """How many jobs can be on time, counting up to `cap` of them left out before it gives up with -1."""
    J = len(release_J)
    kept = np.empty(J, np.int64)  # jobs kept, in order
    start = np.empty(J)
    count, left_out, end = 0, 0, -np.inf
    for j in range(J):
        kept[count] = j
        start[count] = max(end, release_J[j])
        end = start[count] + work_J[j]
        count += 1
        if end <= deadline_J[j]:
            continue
        best, best_gain, slack = count - 1, work_J[j], start[count - 1] - release_J[j]
        if start[count - 1] > release_J[j]:
            place = count - 2
            while place >= 0 and slack > best_gain:
                k = kept[place]
                gain = min(work_J[k], slack)
                if gain > best_gain:
                    best, best_gain = place, gain
                slack = min(slack, start[place] - release_J[k])
                place -= 1
        left_out += 1
        if left_out > cap:
            return -1
        _drop(kept, start, best, count, release_J, work_J)
        count -= 1
        end = start[count - 1] + work_J[kept[count - 1]] if count > 0 else -np.inf
    return count


@njit(cache=True)
def _drop(kept, start, best, count, release_J, work_J):
    """Takes the job at place `best` out; those behind it move up as far as their releases let them."""
    end = start[best - 1] + work_J[kept[best - 1]] if best > 0 else -np.inf
    for place in range(best + 1, count):
        k = kept[place]
        moved = max(end, release_J[k])
        kept[place - 1], start[place - 1] = k, moved
        end = moved + work_J[k]
