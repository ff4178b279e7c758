"""Orders of unlike micro-batches through 1F1B pipelines (numba): a span, the best order of a few, and annealing."""

import numpy as np
from numba import njit

from planner.solvers.compilation.kept import kept
from planner.solvers.compilation.parts import inlined_part, part
from planner.solvers.compiled.copies import copy_row, copy_rows, move_item


@part
def _phase(forward_NR, backward_NR, order, count, j, free_R, ends_R, back_R):
    """Phase j of an order under 1F1B: `free_R` and `ends_R`, of the backward passes at hand, move on.

    It has the forward passes of the j-th sample on every rank, then on rank r the backward pass of the sample R - 1 - r
    before it: every pass then stands behind what it waits for.
    """
    R = forward_NR.shape[1]
    if j < count:
        arrived = 0.0
        for r in range(R):
            arrived = max(free_R[r], arrived) + forward_NR[order[j], r]
            free_R[r] = arrived
    for r in range(R):
        i = j - (R - 1 - r)
        back_R[r] = ends_R[r]
        if i < 0 or i >= count:
            continue
        ready = free_R[r]
        if r < R - 1:
            ready = max(ready, ends_R[r + 1])
        back_R[r] = ready + backward_NR[order[i], r]
        free_R[r] = back_R[r]
    for r in range(R):
        ends_R[r] = back_R[r]


@inlined_part
def _finish(forward_NR, backward_NR, order, count, begin, free_R, ends_R, back_R):
    """Seconds in which the last rank is done, after all phases from `begin` on."""
    R = forward_NR.shape[1]
    for j in range(begin, count + R - 1):
        _phase(forward_NR, backward_NR, order, count, j, free_R, ends_R, back_R)
    last = 0.0
    for r in range(R):
        last = max(last, free_R[r])
    return last


@kept
@njit
def span(forward_NR, backward_NR, order, count, free_R, ends_R, back_R):
    """Seconds of the first `count` samples of an order under 1F1B, without transfers; the last three are scratch."""
    R = forward_NR.shape[1]
    for r in range(R):
        free_R[r] = 0.0
        ends_R[r] = 0.0
    return _finish(forward_NR, backward_NR, order, count, 0, free_R, ends_R, back_R)


@inlined_part
def _begin(forward_NR, backward_NR, own, left_R, tail_R):
    """Writes what there is to do on each rank, and the least way back from it to the first."""
    for r in range(len(left_R)):
        left_R[r], tail_R[r] = 0.0, np.inf
        for sample in own:
            left_R[r] += forward_NR[sample, r] + backward_NR[sample, r]
            way = 0.0
            for q in range(r):
                way += backward_NR[sample, q]
            tail_R[r] = min(tail_R[r], way)


@kept
@njit
def best_order(forward_NR, backward_NR, own, cutoff_s, most_nodes, best):
    """(seconds, nodes) of the best order of the samples `own`, written to `best`; infinite where none is below cutoff.

    Depth first. An order's first p samples fix all passes of phases below p; the rest takes at least, on every rank,
    what is left to do there and the least way back from it. nodes: above `most_nodes` where the search was given up.
    """
    K, R = len(own), forward_NR.shape[1]
    free_LR, ends_LR = np.zeros((K + 1, R)), np.zeros((K + 1, R))
    back_R, tail_R = np.zeros(R), np.zeros(R)
    left_LR = np.zeros((K + 1, R))
    _begin(forward_NR, backward_NR, own, left_LR[0], tail_R)
    order, used = np.zeros(K, np.int64), np.zeros(K, np.bool_)
    at = np.full(K + 1, -1, np.int64)
    free_R, ends_R = np.zeros(R), np.zeros(R)
    level, nodes, best_s = 0, 0, cutoff_s
    while level >= 0:
        if at[level] >= 0:
            used[at[level]] = False
        at[level] += 1
        while at[level] < K and used[at[level]]:
            at[level] += 1
        if at[level] >= K:
            at[level] = -1
            level -= 1
            continue
        nodes += 1
        if nodes > most_nodes:
            return best_s, nodes
        pick = at[level]
        used[pick] = True
        order[level] = own[pick]
        copy_row(free_LR[level], free_LR[level + 1])
        copy_row(ends_LR[level], ends_LR[level + 1])
        _phase(forward_NR, backward_NR, order, level + 1, level, free_LR[level + 1], ends_LR[level + 1], back_R)
        bound = 0.0
        for r in range(R):
            done = forward_NR[own[pick], r]
            i = level - (R - 1 - r)
            if i >= 0:
                done += backward_NR[order[i], r]
            left_LR[level + 1, r] = left_LR[level, r] - done
            bound = max(bound, free_LR[level + 1, r] + left_LR[level + 1, r] + tail_R[r])
        if bound >= best_s - 1e-12:
            continue
        if level + 1 == K:
            copy_row(free_LR[K], free_R)
            copy_row(ends_LR[K], ends_R)
            total = _finish(forward_NR, backward_NR, order, K, K, free_R, ends_R, back_R)
            if total < best_s - 1e-12:
                best_s = total
                copy_row(order, best)
            continue
        level += 1
    return best_s, nodes


@kept
@njit
def anneal(forward_NR, backward_NR, order_DK, steps, seed):
    """Improves orders in place by exchanges of two places; returns the longest span. Source of the method: annealing.

    A move is judged by the longest span and, a hundredth of it, the mean of all spans.
    """
    np.random.seed(seed)
    D, K = order_DK.shape
    R = forward_NR.shape[1]
    free_R, ends_R, back_R = np.zeros(R), np.zeros(R), np.zeros(R)
    span_D = np.zeros(D)
    for d in range(D):
        span_D[d] = span(forward_NR, backward_NR, order_DK[d], K, free_R, ends_R, back_R)
    best_DK, best = order_DK.copy(), span_D.max()
    value = span_D.max() + 0.01 * span_D.mean()
    hot = 0.02 * value
    for step in range(steps):
        heat = hot * (1e-3 ** (step / steps)) * 0.2
        a = np.argmax(span_D) if np.random.random() < 0.5 else np.random.randint(D)
        b = np.random.randint(D)
        i, j = np.random.randint(K), np.random.randint(K)
        if a == b and i == j:
            continue
        shift = a == b and np.random.random() < 0.3
        if shift:
            move_item(order_DK[a], i, j)
        else:
            order_DK[a, i], order_DK[b, j] = order_DK[b, j], order_DK[a, i]
        was_a, was_b = span_D[a], span_D[b]
        span_D[a] = span(forward_NR, backward_NR, order_DK[a], K, free_R, ends_R, back_R)
        if a != b:
            span_D[b] = span(forward_NR, backward_NR, order_DK[b], K, free_R, ends_R, back_R)
        trial = span_D.max() + 0.01 * span_D.mean()
        if trial <= value or np.random.random() < np.exp((value - trial) / heat):
            value = trial
            if span_D.max() < best:
                best = span_D.max()
                copy_rows(order_DK, best_DK)
            continue
        span_D[a], span_D[b] = was_a, was_b
        if shift:
            move_item(order_DK[a], j, i)
        else:
            order_DK[a, i], order_DK[b, j] = order_DK[b, j], order_DK[a, i]
    copy_rows(best_DK, order_DK)
    return best
