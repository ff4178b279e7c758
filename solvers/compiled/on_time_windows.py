"""Requests on time by what windows have room for (numba): a shortest path over the requests. J request."""

import numpy as np
from numba import njit


@njit(cache=True)
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


@njit(cache=True)
def _step(length_s, fine_s, coarse_s, knee):
    """The first step of the grid that is no shorter than the window: `knee` fine ones, then coarse ones."""
    step = int(np.ceil(length_s / fine_s - 1e-9))
    if step <= knee:
        return step
    return knee + int(np.ceil((length_s - knee * fine_s) / coarse_s - 1e-9))


@njit(cache=True)
def _numbers(J, dense, growth):
    numbers = np.empty(J, np.int64)
    count, number = 0, 1
    while number <= J:
        numbers[count] = number
        count += 1
        number = number + 1 if number < dense else int(number * growth) + 1
    return numbers[:count]
