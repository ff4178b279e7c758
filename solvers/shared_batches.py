"""Jobs into batches that machines share: which jobs run together, and how many machines each batch gets.

Source: Wu et al., LoongServe, SOSP 2024 (arXiv:2404.09526), section 5.3.
Sets        j in J jobs, by size from the largest; k in 1..M machines of a batch
Parameters  s_j > 0 size,  T(k, S, Q) [s] time of a batch of sizes that sum to S, their squares to Q, on k machines
Variables   a partition of J into batches of neighbours B_1, B_2, ..,  k_b machines each
Minimise    sum_b T(k_b, S_b, Q_b) sum_{j in B_b} 1 / s_j       time that each job waits, for each unit of its size
(C1) sum_b k_b <= M
Recurrence  f[n, m] = min_{i < n, k <= m} f[i, m - k] + T(k, S_in, Q_in) W_in     over the first n jobs and m machines
            with the sums over the jobs i+1..n; O(|J|^2 M^2), and |J|^2 M evaluations of T.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
BatchTime = Callable[[int, FloatArray, FloatArray], FloatArray]  # (k, S, Q) -> seconds, over arrays


@dataclass(frozen=True, slots=True)
class SharedBatch:
    """Jobs by their number in the order given, and the machines that they share."""

    jobs: tuple[int, ...]
    machines: int


@dataclass(frozen=True, slots=True)
class SharedBatches:
    """An optimal partition and its objective."""

    batches: tuple[SharedBatch, ...]
    objective: float


def share_batches(sizes: Sequence[float], machines: int, batch_time: BatchTime) -> SharedBatches:
    """The partition of least waiting for each unit of size; raises ValueError without machines or with empty jobs."""
    if machines < 1 or any(size <= 0.0 for size in sizes):
        raise ValueError("needs a machine, and jobs of sizes above 0")
    order = np.argsort(-np.asarray(sizes, dtype=np.float64), kind="stable")
    s = np.asarray(sizes, dtype=np.float64)[order]
    J, M = len(s), machines
    sums, squares, weights = (np.concatenate([[0.0], np.cumsum(values)]) for values in (s, s * s, 1.0 / s))
    cost_kij = np.full((M + 1, J + 1, J + 1), np.inf)  # [k, i, n]: jobs i+1..n on k machines
    i, n = np.triu_indices(J + 1, 1)
    for k in range(1, M + 1):
        cost_kij[k, i, n] = batch_time(k, sums[n] - sums[i], squares[n] - squares[i]) * (weights[n] - weights[i])
    best = np.full((J + 1, M + 1), np.inf)
    best[0] = 0.0
    chosen = np.zeros((J + 1, M + 1, 2), dtype=np.int64)
    for last in range(1, J + 1):
        for m in range(1, M + 1):
            options = np.stack([best[:last, m - k] + cost_kij[k, :last, last] for k in range(1, m + 1)])
            row, first = divmod(int(np.argmin(options)), last)
            best[last, m] = options[row, first]
            chosen[last, m] = first, row + 1
    return SharedBatches(_batches(chosen, order, M), float(best[J, M]))


def _batches(chosen: NDArray[np.int64], order: NDArray[np.int64], machines: int) -> tuple[SharedBatch, ...]:
    """The partition that the choices lead back to, largest jobs first."""
    ends, left = [len(order)], machines
    counts = []
    while ends[-1] > 0:
        first, k = chosen[ends[-1], left]
        counts.append(int(k))
        ends.append(int(first))
        left -= int(k)
    return tuple(
        SharedBatch(tuple(int(job) for job in order[first:last]), k)
        for (last, first), k in reversed(list(zip(pairwise(ends), counts, strict=True)))
    )
