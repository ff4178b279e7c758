"""Batches that share machines: the recurrence against all partitions, and what must hold of any optimum."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.solvers.shared_batches import FloatArray, share_batches

SIZES = st.lists(st.integers(1, 200), min_size=1, max_size=6)


def batch_time(k: int, total: FloatArray, squares: FloatArray) -> FloatArray:
    return 1.0 + 0.3 * k + total / k + 0.01 * squares / k


def brute_force(sizes: list[int], machines: int) -> float:
    """All cuts of the sorted list, and all numbers of machines for the batches."""
    ordered = sorted(sizes, reverse=True)
    best = float("inf")
    for cuts in product((False, True), repeat=len(ordered) - 1):
        batches: list[list[int]] = [[]]
        for job, size in enumerate(ordered):
            batches[-1].append(size)
            if job < len(cuts) and cuts[job]:
                batches.append([])
        for counts in product(range(1, machines + 1), repeat=len(batches)):
            if sum(counts) <= machines:
                best = min(best, sum(cost(batch, k) for batch, k in zip(batches, counts, strict=True)))
    return best


def cost(batch: list[int], k: int) -> float:
    seconds = batch_time(k, np.array(float(sum(batch))), np.array(float(sum(size * size for size in batch))))
    return float(seconds) * sum(1.0 / size for size in batch)


@settings(max_examples=40, deadline=None)
@given(sizes=SIZES, machines=st.integers(1, 4))
def test_the_recurrence_finds_what_all_partitions_hold(sizes: list[int], machines: int) -> None:
    found = share_batches(sizes, machines, batch_time)
    assert found.objective == pytest.approx(brute_force(sizes, machines), rel=1e-9)
    by_batch = [([sizes[job] for job in batch.jobs], batch.machines) for batch in found.batches]
    assert sum(cost(batch, k) for batch, k in by_batch) == pytest.approx(found.objective, rel=1e-9)
    assert sorted(job for batch in found.batches for job in batch.jobs) == list(range(len(sizes)))
    assert sum(k for _, k in by_batch) <= machines


@settings(max_examples=20, deadline=None)
@given(sizes=SIZES, machines=st.integers(1, 4))
def test_one_machine_more_never_hurts(sizes: list[int], machines: int) -> None:
    more = share_batches(sizes, machines + 1, batch_time).objective
    assert more <= share_batches(sizes, machines, batch_time).objective * (1 + 1e-12)


def test_jobs_without_size_and_no_machine_are_refused() -> None:
    with pytest.raises(ValueError, match="sizes above 0"):
        share_batches([1.0, 0.0], 2, batch_time)
    with pytest.raises(ValueError, match="a machine"):
        share_batches([1.0], 0, batch_time)
