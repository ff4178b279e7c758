"""Batches that share machines: the recurrence against all partitions, and what must hold of any optimum."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from planner.solvers.schedules.shared_batches import share_batches

SIZES = st.lists(st.integers(1, 200), min_size=1, max_size=5)
Batch = tuple[int, int, int]  # first job, end, machines


def cost_of(sizes: list[int], k: int) -> float:
    """Of sizes as one batch on k machines."""
    total, squares = float(sum(sizes)), float(sum(size * size for size in sizes))
    return (1.0 + 0.3 * k + total / k + 0.01 * squares / k) * sum(1.0 / size for size in sizes)


def costs(sizes: list[int], machines: int) -> NDArray[np.float64]:
    cost_KJJ = np.full((machines + 1, len(sizes) + 1, len(sizes) + 1), np.inf)
    for k in range(1, machines + 1):
        for j in range(1, len(sizes) + 1):
            for i in range(j):
                cost_KJJ[k, i, j] = cost_of(sizes[i:j], k)
    return cost_KJJ


def batches_and_cost(sizes: list[int], machines: int) -> tuple[list[Batch], float]:
    batch_B2 = np.zeros((len(sizes), 2), dtype=np.int64)
    count, cost = share_batches(costs(sizes, machines), len(sizes), machines, batch_B2)
    ends = [0, *batch_B2[:count, 0].tolist()]
    return list(zip(ends[:-1], ends[1:], batch_B2[:count, 1].tolist(), strict=True)), cost


def brute_force(sizes: list[int], machines: int) -> float:
    """All cuts of the list, and all numbers of machines for the batches."""
    best = float("inf")
    for cuts in product((False, True), repeat=len(sizes) - 1):
        batches: list[list[int]] = [[]]
        for job, size in enumerate(sizes):
            batches[-1].append(size)
            if job < len(cuts) and cuts[job]:
                batches.append([])
        for counts in product(range(1, machines + 1), repeat=len(batches)):
            if sum(counts) <= machines:
                best = min(best, sum(cost_of(batch, k) for batch, k in zip(batches, counts, strict=True)))
    return best


@settings(max_examples=40, deadline=None)
@given(sizes=SIZES, machines=st.integers(1, 4))
def test_the_recurrence_finds_what_all_partitions_hold(sizes: list[int], machines: int) -> None:
    batches, cost = batches_and_cost(sizes, machines)
    assert cost == pytest.approx(brute_force(sizes, machines), rel=1e-9)
    assert sum(cost_of(sizes[i:j], k) for i, j, k in batches) == pytest.approx(cost, rel=1e-9)
    assert [first for first, _, _ in batches] == [0, *(end for _, end, _ in batches[:-1])]
    assert batches[-1][1] == len(sizes)
    assert sum(k for _, _, k in batches) <= machines
    assert all(first < end and k >= 1 for first, end, k in batches)


@settings(max_examples=20, deadline=None)
@given(sizes=SIZES, machines=st.integers(1, 4))
def test_one_machine_more_never_hurts(sizes: list[int], machines: int) -> None:
    assert batches_and_cost(sizes, machines + 1)[1] <= batches_and_cost(sizes, machines)[1] * (1 + 1e-12)


def test_of_equal_partitions_the_one_of_fewest_machines_and_longest_batches_is_taken() -> None:
    batch_B2 = np.zeros((3, 2), dtype=np.int64)
    count, cost = share_batches(np.zeros((3, 4, 4)), 3, 2, batch_B2)
    assert (count, cost) == (1, 0.0)
    assert batch_B2[0].tolist() == [3, 1]
