"""Copies of blocks on a pool against all placements on two instances; bad input."""

import itertools

import numpy as np
import pytest
from block_traces import of, random_trace

from planner.errors import PlannerError
from planner.solvers.caches.block_copies import PoolProblem, hits_bound, most_hits, pool_loads
from planner.solvers.caches.even_loads import even_shares


def most_on_two(problem: PoolProblem) -> int:
    """The most hits of all placements on two instances whose copies share their loads in any way."""
    requests, best = problem.requests, 0
    limit = 1.0 + problem.over_mean
    for places in itertools.product((0, 1, 2, 3), repeat=requests.num_blocks):  # none, the first, the second, both
        used = [sum(1 for place in places if place & bit) for bit in (1, 2)]
        if used[0] > problem.slots_N[0] or used[1] > problem.slots_N[1]:
            continue
        held_B = np.array(places) > 0
        hits_B = np.bincount(requests.block_A[requests.leading_A(held_B[requests.block_A])], minlength=len(places))
        alone = [int(hits_B[np.array(places) == place].sum()) for place in (1, 2)]
        hits = int(hits_B.sum())
        if hits > best and max(*alone, hits / 2.0) <= limit * hits / 2.0 + 1e-9:
            best = hits
    return best


@pytest.mark.parametrize("seed", range(100))
def test_no_placement_on_two_instances_beats_the_bound(seed: int) -> None:
    draws = np.random.default_rng(seed)
    requests = of(random_trace(seed, requests=8, branches=1, depth=2)[: 3 + seed % 6])
    problem = PoolProblem(requests, draws.integers(1, 4, 2), float(draws.choice([0.0, 0.05, 0.3])))
    result = most_hits(problem)
    assert result.solution is not None
    assert result.objective is not None
    assert result.bound is not None
    assert result.objective <= most_on_two(problem) <= result.bound + 1e-9


def test_a_block_that_is_too_heavy_for_one_instance_is_copied_until_loads_are_even() -> None:
    prompts = [[(0,), (0, r)] for r in range(40) for _ in range(2)]
    problem = PoolProblem(of(prompts), np.full(4, 8), 0.05)
    result = most_hits(problem)
    assert result.solution is not None
    assert result.bound is not None
    assert result.objective is not None
    load_N, hits = pool_loads(problem.requests, result.solution, 4)
    assert hits == result.objective
    assert load_N.max() <= 1.05 * load_N.mean() + 1e-9
    assert len(result.solution[0].at) >= 3
    assert result.objective >= 0.97 * result.bound


@pytest.mark.parametrize(("skewed", "least"), [(True, 0.985), (False, 0.95)])
def test_loads_that_must_be_exactly_even_are_exchanged_and_shared_until_they_are(skewed: bool, least: float) -> None:
    draws = np.random.default_rng(3)
    blocks = draws.zipf(1.3, 2_000) % 400 if skewed else draws.integers(0, 400, 4_000)
    problem = PoolProblem(of([[(int(block),)] for block in blocks]), np.full(12, 20), 0.0)
    result = most_hits(problem)
    assert result.solution is not None
    assert result.objective is not None
    assert result.bound is not None
    load_N, hits = pool_loads(problem.requests, result.solution, 12)
    assert load_N == pytest.approx(np.full(12, hits / 12))
    assert result.objective == hits >= least * result.bound
    assert all(copies.share.sum() == pytest.approx(1.0) for copies in result.solution.values())
    used_N = np.bincount(np.concatenate([copies.at for copies in result.solution.values()]), minlength=12)
    assert used_N.max() <= 20


def test_shares_of_copies_leave_the_least_load_on_the_fullest_instance() -> None:
    fixed_N = np.array([5.0, 1.0, 0.0])
    shares = even_shares(fixed_N, {7: np.array([0, 1]), 9: np.array([1, 2])}, {7: 2.0, 9: 4.0})
    assert shares[7] == pytest.approx([0.0, 1.0])
    load_N = fixed_N + np.array([0.0, 2.0 + 4.0 * shares[9][0], 4.0 * shares[9][1]])
    assert load_N.max() == pytest.approx(5.0)  # nothing moves what one instance alone holds


def test_more_slots_never_lower_the_bound() -> None:
    requests = of(random_trace(5, requests=60))
    bounds = [hits_bound(PoolProblem(requests, np.full(3, slots), 0.05)) for slots in range(1, 8)]
    assert bounds == sorted(bounds)


def test_instances_without_slots_and_limits_below_the_mean_are_refused() -> None:
    requests = of(random_trace(1))
    for slots, over in ((np.array([2, 0]), 0.1), (np.array([2, 2]), -0.1)):
        with pytest.raises(PlannerError, match="instances of"):
            PoolProblem(requests, slots, over)
