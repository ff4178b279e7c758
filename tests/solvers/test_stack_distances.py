"""Stack distances against lists of recent blocks; bad input."""

import numpy as np
import pytest
from block_traces import of, random_trace, recent_hits
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.solvers.caches.block_requests import BlockRequests
from planner.solvers.caches.stack_distances import NEVER, hit_curve, stack_distances


@pytest.mark.parametrize("seed", range(20))
def test_a_block_hits_in_a_cache_exactly_where_its_distance_is_below_the_size(seed: int) -> None:
    prompts = random_trace(seed)
    requests = of(prompts)
    distance_A = stack_distances(requests)
    curve_C = hit_curve(distance_A)
    for size in (0, 1, 2, 3, 5, 8, 13, 100):
        hits = recent_hits(prompts, dict.fromkeys(requests.names, 0), [size])  # type: ignore[arg-type]
        assert ((distance_A != NEVER) & (distance_A < size)).tolist() == hits
        assert curve_C[min(size, len(curve_C) - 1)] == sum(hits)


@given(st.integers(0, 2**20))
def test_a_block_is_never_nearer_than_those_before_it(seed: int) -> None:
    requests = of(random_trace(seed, requests=12))
    far_A = np.where((distance_A := stack_distances(requests)) == NEVER, 10**9, distance_A)
    for first, last in zip(requests.first_R, requests.first_R[1:], strict=False):
        assert (np.diff(far_A[first:last]) >= 0).all()


def test_windows_keep_the_numbers_of_blocks() -> None:
    requests = of(random_trace(3), 0.5)
    later = requests.between(5.0, 10.0)
    assert len(later) == 10
    assert later.num_blocks == requests.num_blocks
    assert later.block_A.tolist() == requests.block_A[requests.first_R[10] : requests.first_R[20]].tolist()
    assert (later.position_A[later.first_R[:-1]] == 0).all()


def test_traces_without_blocks_and_with_time_going_back_are_refused() -> None:
    with pytest.raises(PlannerError, match="no request has a block"):
        BlockRequests.of([0.0, 1.0], [[], []])
    with pytest.raises(PlannerError, match="request 3 comes at 1 s, after one at 2 s"):
        BlockRequests.of([0.0, 2.0, 1.0], [["a"], ["b"], ["a"]])
