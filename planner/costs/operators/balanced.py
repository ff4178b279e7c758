"""Rows of the fullest rank that shares experts: these in the order of their numbers, or placed by load (EPLB)."""

import heapq
from functools import lru_cache

import numpy as np

from planner.arrays import Floats
from planner.costs.operators.experts import fullest_rank

DRIFT = 0.085
"""Of the variance of loads, what those do not tell that an engine placed experts by: the median over pairs of mixes of
lengths of DeepSeek-R1, between a hundredth where they are alike and a third (`benchmarks/expert_drift.py`)."""


def fullest_rows(concentration: float, num_experts: int, ep: Floats, redundant: Floats | None = None) -> Floats:
    """Rows of the fullest of `ep` ranks over their mean [N]; all of them wait for it.

    `redundant`: copies of experts that are placed by load; BY_NUMBER, or None, where no load places them.
    """
    full = np.array(fullest_rank(concentration**-0.5, num_experts, ep), dtype=np.float64)
    placed = np.zeros(full.shape, dtype=np.bool_) if redundant is None else redundant >= 0.0
    if placed.any():
        even = placed_rank(concentration, num_experts, ep[placed], np.asarray(redundant)[placed])
        full[placed] = np.minimum(full[placed], even)
    return full


def placed_rank(concentration: float, num_experts: int, ep: Floats, redundant: Floats) -> Floats:
    """Rows of the fullest of `ep` ranks over their mean [N] where loads move after experts were placed by them.

    What moves is independent from expert to expert, and of DRIFT of the variance of loads. The fullest of n ranks lies
    as many deviations above the mean as n normal variables have it (Blom, Statistical Estimates and Transformed Beta
    Variables, 1958).
    """
    from scipy.special import ndtri

    above = ndtri((ep - 0.375) / (ep + 0.25)) * (DRIFT / concentration) ** 0.5
    moved = above * np.sqrt(ep / (num_experts + redundant))
    return np.asarray(balanced_rank(concentration, num_experts, ep, redundant) + moved, dtype=np.float64)


def balanced_rank(concentration: float, num_experts: int, ep: Floats, redundant: Floats) -> Floats:
    """Rows of the fullest of `ep` ranks over their mean [N], with `redundant` copies placed by load.

    Loads are gamma variables of shape `concentration`, as in `planner.costs.operators.experts.touched_share`. Each of E
    experts is taken at its own quantile, (e + 1/2) / E, which meets the mean of drawn loads within a tenth
    (tests/costs/test_expert_balance.py); ranks of four experts or more are even to a few percent.
    """
    cases, case_N = np.unique(np.stack([ep, redundant]), axis=1, return_inverse=True)
    full = [_fullest(concentration, num_experts, int(ranks), int(copies)) for ranks, copies in cases.T]
    return np.asarray(full, dtype=np.float64)[case_N.ravel()]


@lru_cache(maxsize=1024)
def _fullest(concentration: float, num_experts: int, ranks: int, redundant: int) -> float:
    loads = _quantiles(concentration, num_experts)
    rows = packed(copied(loads, num_experts + redundant), ranks)
    return max(rows) * ranks / sum(rows)


@lru_cache(maxsize=64)
def _quantiles(concentration: float, num_experts: int) -> tuple[float, ...]:
    """Loads of the experts, that of each at its own quantile."""
    if np.isinf(concentration):
        return (1.0,) * num_experts
    from scipy.special import gammaincinv

    return tuple(gammaincinv(concentration, (np.arange(num_experts) + 0.5) / num_experts).tolist())


def copied(loads: tuple[float, ...], slots: int) -> list[float]:
    """Loads of all slots: each further copy goes to the expert with most load a copy.

    With `packed` this is the global policy of DeepSeek's EPLB (github.com/deepseek-ai/EPLB, README), which SGLang, vLLM
    and TensorRT-LLM have too.
    """
    heap = [(-load, load, 1) for load in loads]
    heapq.heapify(heap)
    for _ in range(slots - len(loads)):
        _, load, copies = heap[0]
        heapq.heapreplace(heap, (-load / (copies + 1), load, copies + 1))
    return [-each for each, _, copies in heap for _ in range(copies)]


def packed(loads: list[float], ranks: int) -> list[float]:
    """Loads of ranks with equally many slots: heaviest first, to the lightest rank with a slot left.

    Where loads do not divide, some slots stay empty.
    """
    room = -(-len(loads) // ranks)
    heap = [(0.0, rank, room) for rank in range(ranks)]
    full = []
    for load in sorted(loads, reverse=True):
        held, rank, left = heap[0]
        if left > 1:
            heapq.heapreplace(heap, (held + load, rank, left - 1))
        else:
            heapq.heappop(heap)
            full.append(held + load)
    return full + [held for held, _, _ in heap]
