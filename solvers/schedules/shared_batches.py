"""Contiguous partition with resource allocation: which jobs run as a batch, and how many machines each batch gets.

Source: Wu et al., LoongServe, SOSP 2024 (arXiv:2404.09526), section 5.3.
Sets        j in J jobs, in an order in which those of a batch stand together (by size, from the largest);
            k in 1..M machines of a batch
Parameters  c_kij >= 0 cost of jobs i+1..j as one batch on k machines; of LoongServe T(k, S, Q) sum_j 1 / s_j, the time
            that a batch of sizes s takes for each unit of size that waits for it (S their sum, Q that of their squares)
Variables   a partition of J into batches of neighbours B_1, B_2, ..,  k_b machines each
Minimise    sum_b c(k_b, B_b)
(C1) sum_b k_b <= M
Recurrence  f[j, m] = min_{i < j, k <= m} f[i, m - k] + c_kij     over the first j jobs and m machines; O(|J|^2 M^2)

Plain loops, so that they run as they stand and as a part of a compiled program.
"""

import numpy as np

from planner.arrays import Floats, Ints


def share_batches(cost_KJJ: Floats, jobs: int, machines: int, batch_B2: Ints) -> tuple[int, float]:
    """How many batches there are in an optimal partition of the first `jobs`, and its cost.

    `cost_KJJ[k, i, j]` is c_kij, `machines` and `jobs` at least 1 and within it. The batches are left in `batch_B2`
    [at least `jobs`, 2], in the order of the jobs: where each ends, and its machines. Of equal ones the fewest machines
    and the longest batches are taken, last batch first.
    """
    best = np.full((jobs + 1, machines + 1), np.inf)
    first = np.zeros((jobs + 1, machines + 1), np.int64)
    last_k = np.zeros((jobs + 1, machines + 1), np.int64)
    best[0] = 0.0
    for j in range(1, jobs + 1):
        for m in range(1, machines + 1):
            for k in range(1, m + 1):
                for i in range(j):
                    cost = best[i, m - k] + cost_KJJ[k, i, j]
                    if cost < best[j, m]:
                        best[j, m], first[j, m], last_k[j, m] = cost, i, k
    count, j, m = 0, jobs, machines
    while j > 0:
        batch_B2[count, 0], batch_B2[count, 1] = j, last_k[j, m]
        j, m = first[j, m], m - last_k[j, m]
        count += 1
    for b in range(count // 2):
        for column in range(2):
            kept = batch_B2[b, column]
            batch_B2[b, column] = batch_B2[count - 1 - b, column]
            batch_B2[count - 1 - b, column] = kept
    return count, float(best[jobs, machines])
