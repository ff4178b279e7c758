"""Stages of layers from nodes of several types (numba). State: how many nodes of each type are used, in mixed radix."""

import numpy as np
from numba import njit

from planner.solvers.compilation.kept import kept


@kept
@njit
def shortest_paths(count_T, layers, length_C, used_CT, path_C):
    """Least path of stages that cover so many layers with exactly these nodes, and the stage that came last. [S, L + 1]

    C: a stage, by its layers, nodes and path; inf where there are none. Of every state, only the layers between the
    fewest and the most that it covers are looked at.
    """
    types = len(count_T)
    radix = np.ones(types + 1, np.int64)
    for t in range(types):
        radix[t + 1] = radix[t] * (count_T[t] + 1)
    states = radix[types]
    least = np.full((states, layers + 1), np.inf)
    last = np.full((states, layers + 1), -1, np.int64)
    least[0, 0] = 0.0
    fewest, most = np.full(states, layers + 1), np.full(states, -1)
    fewest[0] = most[0] = 0
    digit = np.zeros(types, np.int64)
    for state in range(1, states):
        for t in range(types):
            digit[t] = state // radix[t] % (count_T[t] + 1)
        for c in range(len(length_C)):
            before, fits = state, True
            for t in range(types):
                if used_CT[c, t] > digit[t]:
                    fits = False
                    break
                before -= used_CT[c, t] * radix[t]
            if not fits:
                continue
            length, path = length_C[c], path_C[c]
            longest = min(most[before] + length, layers)
            for covered in range(fewest[before] + length, longest + 1):
                reached = least[before, covered - length] + path
                if reached < least[state, covered]:
                    least[state, covered] = reached
                    last[state, covered] = c
            if longest >= fewest[before] + length:
                fewest[state] = min(fewest[state], fewest[before] + length)
                most[state] = max(most[state], longest)
    return least, last


@kept
@njit
def cheapest_cover(units_I, price_I, wanted):
    """Least price of items, each any number of times, whose units come to `wanted` at least; the items."""
    least = np.full(wanted + 1, np.inf)
    chosen = np.full(wanted + 1, -1, np.int64)
    least[0] = 0.0
    for units in range(1, wanted + 1):
        for i in range(len(units_I)):
            if units_I[i] <= 0:
                continue
            price = least[max(units - units_I[i], 0)] + price_I[i]
            if price < least[units]:
                least[units], chosen[units] = price, i
    items = np.empty(wanted, np.int64)
    count, units = 0, wanted
    while units > 0 and chosen[units] >= 0:
        items[count] = chosen[units]
        count += 1
        units = max(units - units_I[chosen[units]], 0)
    return least[wanted], items[:count]


@kept
@njit
def most_flow(capacity_VV, source, sink):
    """The maximum flow of whole capacities, by shortest augmenting paths; what is left stands in their place."""
    vertices = len(capacity_VV)
    before, queue = np.empty(vertices, np.int64), np.empty(vertices, np.int64)
    flow = 0
    while True:
        before[:] = -1
        before[source] = source
        queue[0] = source
        head, tail = 0, 1
        while head < tail and before[sink] < 0:
            vertex = queue[head]
            head += 1
            for other in range(vertices):
                if before[other] < 0 and capacity_VV[vertex, other] > 0:
                    before[other] = vertex
                    queue[tail] = other
                    tail += 1
        if before[sink] < 0:
            return flow
        least, vertex = capacity_VV[before[sink], sink], sink
        while vertex != source:
            least = min(least, capacity_VV[before[vertex], vertex])
            vertex = before[vertex]
        vertex = sink
        while vertex != source:
            capacity_VV[before[vertex], vertex] -= least
            capacity_VV[vertex, before[vertex]] += least
            vertex = before[vertex]
        flow += least
