"""Knowledge trees against all ways to keep their nodes; uses to expect; bad input."""

import itertools

import numpy as np
import pytest

from planner.errors import PlannerError
from planner.solvers.caches.knowledge_tree import (
    Kept,
    KnowledgeTree,
    best_kept,
    counted_uses,
    expected_uses,
    seconds_of,
)
from planner.solvers.result import Status
from planner.solvers.stochastic.poisson_mixture import fit_mixture


def random_tree(seed: int, nodes: int = 5) -> KnowledgeTree:
    draws = np.random.default_rng(seed)
    parent_V = np.array([-1, *(int(draws.integers(-1, v)) for v in range(1, nodes))])
    sizes_V = draws.integers(1, 6, nodes).astype(np.float64)
    return KnowledgeTree(
        parent_V,
        draws.integers(0, 9, nodes).astype(np.float64),
        sizes_V * draws.uniform(0.5, 2.0, nodes),
        sizes_V * draws.uniform(0.0, 1.0, nodes),
        sizes_V,
        float(draws.integers(0, 8)),
        float(draws.integers(0, 12)),
    )


def least_seconds(tree: KnowledgeTree) -> float:
    """Of all ways to keep nodes: nowhere, on the host, on the GPU."""
    least = np.inf
    for levels in itertools.product((0, 1, 2), repeat=len(tree.parent_V)):
        level_V = np.array(levels)
        above_V = np.where(tree.parent_V < 0, 2, level_V[tree.parent_V])
        gpu_V, host_V = level_V == 2, level_V == 1
        if (level_V > above_V).any() or tree.tokens_V @ gpu_V > tree.gpu_tokens:
            continue
        if tree.tokens_V @ host_V <= tree.host_tokens:
            least = min(least, seconds_of(tree, Kept(gpu_V, host_V)))
    return float(least)


@pytest.mark.parametrize("seed", range(100))
def test_what_is_kept_is_the_best_of_all_ways(seed: int) -> None:
    tree = random_tree(seed)
    result = best_kept(tree)
    assert result.status is Status.OPTIMAL
    assert result.bound is not None
    assert result.solution is not None
    assert result.objective == pytest.approx(least_seconds(tree), abs=1e-6)
    assert result.bound <= seconds_of(tree, result.solution) + 1e-6


def test_a_document_seen_once_is_expected_less_often_than_that_where_most_are_rare() -> None:
    draws = np.random.default_rng(2)
    rates = np.where(np.arange(400) < 10, 40.0, 0.2)
    requests = [[int(d)] for d, count in enumerate(draws.poisson(rates)) for _ in range(count)]
    counted, expected = counted_uses(requests), expected_uses(requests, 400)
    rare = [path for path in counted if counted[path] == 1.0]
    often = [path for path in counted if counted[path] > 20.0]
    assert rare
    assert all(0.1 < expected[path] < 0.6 for path in rare)
    assert all(expected[path] == pytest.approx(counted[path], rel=0.4) for path in often)
    assert 0.0 < expected[(399,)] < 0.5


def test_children_are_expected_as_often_as_their_parent_and_their_share_of_it() -> None:
    requests = [[0, 1]] * 30 + [[0, 2]] * 10 + [[3, 1]] * 4 + [[4]]
    expected = expected_uses(requests, 6)
    assert set(counted_uses(requests)) <= set(expected)
    assert expected[(0, 1)] == pytest.approx(30.0, rel=0.25)
    assert expected[(3, 1)] <= expected[(3,)] * 1.2


def test_more_counts_never_lower_the_rate_to_expect() -> None:
    counts = np.arange(12.0)
    mixture = fit_mixture(counts, np.ones(12), 100.0 * 0.5**counts)
    assert (np.diff(mixture.expected(counts, np.ones(12))) >= -1e-9).all()
    assert mixture.chance_G.sum() == pytest.approx(1.0)


def test_trees_that_cannot_be_are_refused() -> None:
    ones = np.ones(2)
    with pytest.raises(PlannerError, match="before the one above it"):
        KnowledgeTree(np.array([1, -1]), ones, ones, ones, ones, 1.0, 1.0)
    with pytest.raises(PlannerError, match="negative or not finite"):
        KnowledgeTree(np.array([-1, 0]), -ones, ones, ones, ones, 1.0, 1.0)
    with pytest.raises(PlannerError, match="room for -1"):
        KnowledgeTree(np.array([-1, 0]), ones, ones, ones, ones, -1.0, 1.0)
