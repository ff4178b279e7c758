"""The optimum of orders of unlike micro-batches, by code of its own (numba): the best order of every subset, a cover.

Passes are simulated one by one as 1F1B lists them for each rank. What first samples fix is simulated once; the rest
takes at least, on every rank, what is left to do there and the least way back from it.
"""

import itertools

import numpy as np
from numba import njit

from planner.solvers.modalities.sample_orders import SampleOrders


@njit(cache=True)
def _pass(rank, place, ranks, count):
    """Whether the pass at a place of a rank's list is a forward one, and of which sample of the order."""
    ahead = min(ranks - 1 - rank, count)
    if place < ahead:
        return True, place
    if place >= 2 * count - ahead:
        return False, place - count
    return ((place - ahead) % 2 == 0), (place - ahead) // 2 + (ahead if (place - ahead) % 2 == 0 else 0)


@njit(cache=True)
def _played(forward_NR, backward_NR, order, known, place_R, free_R, done_FR, done_BR):
    """Plays on with the passes that the first `known` samples of an order fix, from where ranks stand."""
    count, ranks = len(order), forward_NR.shape[1]
    moved = True
    while moved:
        moved = False
        for rank in range(ranks):
            while place_R[rank] < 2 * count:
                forward, sample = _pass(rank, place_R[rank], ranks, count)
                if sample >= known:
                    break
                if forward:
                    ready = 0.0 if rank == 0 else done_FR[sample, rank - 1]
                else:
                    ready = done_FR[sample, rank] if rank == ranks - 1 else done_BR[sample, rank + 1]
                if ready < 0.0:
                    break
                own = forward_NR[order[sample], rank] if forward else backward_NR[order[sample], rank]
                free_R[rank] = max(ready, free_R[rank]) + own
                (done_FR if forward else done_BR)[sample, rank] = free_R[rank]
                place_R[rank] += 1
                moved = True


@njit(cache=True)
def _least(forward_NR, backward_NR, order, place_R, free_R, work_R, back_R):
    """Seconds that no order undercuts which goes on from there: when a rank is free, what is left, and the way back."""
    count, ranks = len(order), forward_NR.shape[1]
    least = 0.0
    for rank in range(ranks):
        left = work_R[rank]
        for place in range(place_R[rank]):
            forward, sample = _pass(rank, place, ranks, count)
            left -= forward_NR[order[sample], rank] if forward else backward_NR[order[sample], rank]
        least = max(least, free_R[rank] + (left + back_R[rank] if place_R[rank] < 2 * count else 0.0))
    return least


@njit(cache=True)
def _best_span(forward_NR, backward_NR, own, cutoff, order):
    """Seconds of the best order of the samples `own` below a cutoff, infinite where there is none. Depth first."""
    count, ranks = len(own), forward_NR.shape[1]
    work_R, back_R = np.zeros(ranks), np.full(ranks, np.inf)
    for sample in own:
        work_R += forward_NR[sample] + backward_NR[sample]
        for rank in range(ranks):
            back_R[rank] = min(back_R[rank], backward_NR[sample, :rank].sum())
    free_LR, place_LR = np.zeros((count + 1, ranks)), np.zeros((count + 1, ranks), np.int64)
    done_LFR, done_LBR = np.full((count + 1, count, ranks), -1.0), np.full((count + 1, count, ranks), -1.0)
    order[:] = own
    tried_L = np.zeros(count + 1, np.int64)
    best, level = cutoff, 0
    while level >= 0:
        place = level + tried_L[level]
        if tried_L[level] > 0:
            order[level], order[place - 1] = order[place - 1], order[level]
        if place >= count:
            tried_L[level] = 0
            level -= 1
            continue
        order[level], order[place] = order[place], order[level]
        tried_L[level] += 1
        after = level + 1
        free_LR[after], place_LR[after] = free_LR[level], place_LR[level]
        done_LFR[after], done_LBR[after] = done_LFR[level], done_LBR[level]
        _played(
            forward_NR, backward_NR, order, after, place_LR[after], free_LR[after], done_LFR[after], done_LBR[after]
        )
        least = _least(forward_NR, backward_NR, order, place_LR[after], free_LR[after], work_R, back_R)
        if least >= best - 1e-12:
            continue
        if after == count:
            best = least
            continue
        level = after
        tried_L[level] = 0
    return best if best < cutoff else np.inf


@njit(cache=True)
def _spans(forward_NR, backward_NR, subsets, cutoff, span_M):
    """Fills in the best span of every subset [S, K], by its mask."""
    order = np.zeros(subsets.shape[1], np.int64)
    for subset in subsets:
        mask = 0
        for sample in subset:
            mask |= 1 << sample
        span_M[mask] = _best_span(forward_NR, backward_NR, subset, cutoff, order)


@njit(cache=True)
def _split(mask, masks, span_M, rest_M):
    """The least longest span of a mask cut into one of `masks` that holds its lowest sample, and the rest."""
    best = np.inf
    for part in masks:
        if part & mask == part and part & (mask & -mask) and span_M[part] < best:
            best = min(best, max(span_M[part], rest_M[mask ^ part]))
    return best


@njit(cache=True)
def _pairs(masks, span_M, pair_M):
    """Fills in the least longest span of every union of two disjoint masks."""
    for first in range(len(masks)):
        for second in range(first + 1, len(masks)):
            if masks[first] & masks[second] == 0:
                both = masks[first] | masks[second]
                pair_M[both] = min(pair_M[both], max(span_M[masks[first]], span_M[masks[second]]))


def optimum_s(problem: SampleOrders, cutoff_s: float) -> float:
    """The least longest span, `cutoff_s` where none is below; of two to four replicas."""
    number, each = len(problem.forward_NR), problem.each
    span_M = np.full(1 << number, np.inf)
    subsets = np.array(list(itertools.combinations(range(number), each)), np.int64)
    _spans(problem.forward_NR, problem.backward_NR, subsets, cutoff_s, span_M)
    masks, whole = np.flatnonzero(np.isfinite(span_M)), (1 << number) - 1
    masks = masks[np.argsort(span_M[masks], kind="stable")]
    if problem.replicas == 2:
        return min(float(_split(whole, masks, span_M, span_M)), cutoff_s)
    pair_M = np.full(1 << number, np.inf)
    _pairs(masks, span_M, pair_M)
    if problem.replicas == 3:
        return min(float(_split(whole, masks, span_M, pair_M)), cutoff_s)
    pairs = np.flatnonzero(np.isfinite(pair_M))
    halves = np.maximum(pair_M[pairs], pair_M[whole ^ pairs])
    return min(float(halves.min(initial=np.inf)), cutoff_s)
