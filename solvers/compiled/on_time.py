"""Requests that can be on time (numba): on one machine, and by what windows have room for. J job or request.

Throughput scheduling with release and deadline in one order, and a shortest path over the requests.
"""

import numpy as np
from numba import njit

from planner.solvers.compilation.kept import kept
from planner.solvers.compilation.parts import owning_part, part


@kept
@njit
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


@part
def _drop(kept, start, best, count, release_J, work_J):
    """Takes the job at place `best` out; those behind it move up as far as their releases let them."""
    end = start[best - 1] + work_J[kept[best - 1]] if best > 0 else -np.inf
    for place in range(best + 1, count):
        k = kept[place]
        moved = max(end, release_J[k])
        kept[place - 1], start[place - 1] = k, moved
        end = moved + work_J[k]


@kept
@njit
def least_path(release_J, deadline_J, room_X, fine_s, coarse_s, knee, dense, growth):
    """Units on the shortest path, and the windows on it as steps of the grid of lengths; the path's value.

    Node j: the first j requests. Edges: one request, at most 1; requests i to j, at most the room of the window from
    the release of i to the deadline of j; back over a request, 0. Windows hold up to `dense` requests, each number of
    them, and beyond that numbers that grow by `growth`.
    """
    J = len(release_J)
    value = np.zeros(J + 1)
    came = np.full(J + 1, -1, np.int64)  # -1: one request; -2: back; else the node at which a window begins
    numbers = _numbers(J, dense, growth)
    for j in range(1, J + 1):
        best, origin = value[j - 1] + 1.0, -1
        for number in numbers:
            i = j - number
            if i < 0:
                break
            if value[i] >= best:
                continue
            room = value[i] + room_X[_step(deadline_J[j - 1] - release_J[i], fine_s, coarse_s, knee)]
            if room < best:
                best, origin = room, i
        value[j], came[j] = best, origin
        back = j
        while back > 0 and value[back - 1] > value[back]:
            value[back - 1], came[back - 1] = value[back], -2
            back -= 1
    units, count = 0, 0
    windows = np.empty(J, np.int64)
    j = J
    while j > 0:
        if came[j] == -1:
            units += 1
            j -= 1
        elif came[j] == -2:
            j += 1
        else:
            windows[count] = _step(deadline_J[j - 1] - release_J[came[j]], fine_s, coarse_s, knee)
            count += 1
            j = came[j]
    return units, windows[:count], value[J]


@part
def _step(length_s, fine_s, coarse_s, knee):
    """The first step of the grid that is no shorter than the window: `knee` fine ones, then coarse ones."""
    step = int(np.ceil(length_s / fine_s - 1e-9))
    if step <= knee:
        return step
    return knee + int(np.ceil((length_s - knee * fine_s) / coarse_s - 1e-9))


@owning_part
def _numbers(J, dense, growth):
    numbers = np.empty(J, np.int64)
    count, number = 0, 1
    while number <= J:
        numbers[count] = number
        count += 1
        number = number + 1 if number < dense else int(number * growth) + 1
    return numbers[:count]
