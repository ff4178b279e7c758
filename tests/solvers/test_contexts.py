"""Ranges, heads and degrees against all choices of small instances; bounds that nothing is below; bad input."""

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest

from planner.errors import PlannerError
from planner.solvers.contexts.core_attention import (
    CoreAttention,
    Moved,
    bound_bytes,
    loads_after,
    move_ranges,
    operations,
    sent_bytes,
)
from planner.solvers.contexts.degrees import DegreeProblem, best_degrees, bound_s, fullest_s
from planner.solvers.contexts.sparse_heads import HeadLayout, place_heads
from planner.solvers.contexts.sparse_heads import fullest_s as heads_s
from planner.solvers.result import Status


def random_layouts(seed: int) -> tuple[list[HeadLayout], float]:
    draws = np.random.default_rng(seed)
    heads = int(draws.integers(1, 7))
    layouts = [
        HeadLayout(
            f"{groups}",
            groups,
            draws.uniform(0.1, 1.0, heads),
            draws.uniform(0.1, 1.0, heads),
            float(draws.uniform(0, 0.2)),
        )
        for groups in (1, 2, 3)
    ]
    return layouts, float(draws.uniform(0.8, 4.0))


def least_heads(layouts: list[HeadLayout], memory: float) -> float:
    best = math.inf
    for layout in layouts:
        for groups in itertools.product(range(layout.groups), repeat=len(layout.seconds_H)):
            rows = [[h for h, group in enumerate(groups) if group == g] for g in range(layout.groups)]
            if all(sum(layout.held_bytes_H[h] for h in row) <= memory for row in rows):
                best = min(best, layout.own_s + max(sum(layout.seconds_H[h] for h in row) for row in rows))
    return best


def test_heads_are_placed_as_the_best_of_all_placements() -> None:
    for seed in range(100):
        layouts, memory = random_layouts(seed)
        least, result = least_heads(layouts, memory), place_heads(layouts, memory)
        if least == math.inf:
            assert result.status is Status.INFEASIBLE
            continue
        assert result.status is Status.OPTIMAL
        assert result.solution is not None
        assert result.objective == pytest.approx(least, rel=1e-9)
        layout = layouts[result.solution.layout]
        assert heads_s(layout, result.solution.group_of_head) == result.objective
        assert min(layout.bound_s for layout in layouts) <= least * (1 + 1e-12)


def test_many_heads_come_within_half_a_percent_of_their_bound() -> None:
    for heads, groups in ((24, 4), (40, 8)):
        sizes = np.random.default_rng(heads).lognormal(-2.2, 0.5, heads)
        result = place_heads([HeadLayout("a", groups, sizes, sizes * 0)], 1.0, most_nodes=100_000)
        assert result.gap is not None
        assert result.gap <= 0.005


def random_degrees(seed: int) -> DegreeProblem:
    draws = np.random.default_rng(seed)
    tokens = draws.lognormal(0.0, 1.0, int(draws.integers(1, 5)))
    columns = [np.where(tokens <= 2.0 * c, 0.1 * c**0.3 + tokens / c * c**0.05, np.inf) for c in (1, 2, 4)]
    columns[2] = np.where(np.isfinite(columns[2]), columns[2], 5.0)
    return DegreeProblem((1, 2, 4), np.stack(columns, axis=1), 4)


def every_choice(problem: DegreeProblem) -> Iterator[tuple[tuple[int, int], ...]]:
    own = [
        [(c, b) for k, c in enumerate(problem.degrees) if math.isfinite(row[k]) for b in range(problem.ranks // c)]
        for row in problem.seconds_NC
    ]
    yield from itertools.product(*own)


def test_degrees_and_blocks_are_the_best_of_all_choices() -> None:
    for seed in range(100):
        problem = random_degrees(seed)
        least = min(fullest_s(problem, choices) for choices in every_choice(problem))
        result = best_degrees(problem, tolerance=0.0, starts=2, time_limit_s=300.0)
        assert result.solution is not None
        assert result.bound is not None
        assert result.objective == pytest.approx(least, rel=1e-5)
        assert fullest_s(problem, result.solution) == result.objective
        assert bound_s(problem) <= least * (1 + 1e-9)
        assert result.bound <= least * (1 + 1e-9)


def random_documents(seed: int, servers: int = 3) -> CoreAttention:
    draws = np.random.default_rng(seed)
    rows = [tuple(int(t) for t in draws.integers(2, 6, int(draws.integers(1, 3)))) for _ in range(servers)]
    rows[0] = (*rows[0], int(draws.integers(10, 14)))
    return CoreAttention(tuple(rows), 4.0, float(draws.choice((0.5, 1.0, 2.0))), float(draws.choice((1.2, 1.4))))


def least_ranges(problem: CoreAttention) -> float:
    """Of all choices of one or two ranges of the longest document, and of one of it and one of any other."""
    best = math.inf
    ranges = [
        Moved(home, document, first, last, server)
        for home, row in enumerate(problem.tokens)
        for document, tokens in enumerate(row)
        for first in range(tokens)
        for last in range(first + 1, tokens + 1)
        for server in range(len(problem.tokens))
        if server != home and (home == 0 or last - first == tokens)
    ]
    for count in (1, 2):
        for moved in itertools.combinations(ranges, count):
            if sent_bytes(problem, moved) < best and _apart(moved) and _kept(problem, moved):
                best = sent_bytes(problem, moved)
    return best


def _apart(moved: tuple[Moved, ...]) -> bool:
    return all(
        (a.home, a.document) != (b.home, b.document) or a.last <= b.first or b.last <= a.first
        for a, b in itertools.combinations(moved, 2)
    )


def _kept(problem: CoreAttention, moved: tuple[Moved, ...]) -> bool:
    return max(loads_after(problem, moved)) <= problem.capacity


def test_ranges_come_near_the_best_of_small_choices_and_nothing_is_below_the_bound() -> None:
    ratios = []
    for seed in range(12):
        problem = random_documents(seed)
        least, result = least_ranges(problem), move_ranges(problem)
        if result.solution is not None and result.objective is not None:
            assert _apart(result.solution)
            assert _kept(problem, result.solution)
            assert sent_bytes(problem, result.solution) == result.objective
            assert bound_bytes(problem) <= result.objective * (1 + 1e-12)
        if least < math.inf:
            assert bound_bytes(problem) <= least * (1 + 1e-12)
            assert result.objective is not None
            ratios.append(result.objective / least if least else 1.0)
    assert len(ratios) >= 8
    assert float(np.mean(ratios)) <= 1.05


def test_ranges_of_long_documents_cost_less_than_tails_and_little_more_than_the_bound() -> None:
    draws = np.random.default_rng(1)
    rows = tuple(tuple(int(t) for t in draws.lognormal(8.0, 0.8, 14)) for _ in range(8))
    problem = CoreAttention(((52_000, *rows[0]), (49_000, *rows[1]), *rows[2:]), 16384.0, 4096.0, 1.05, 128)
    result = move_ranges(problem)
    assert result.solution is not None
    assert result.gap is not None
    assert result.gap <= 0.12
    tokens = problem.tokens
    assert all(
        e.first % 128 == 0 and (e.last % 128 == 0 or e.last == tokens[e.home][e.document]) for e in result.solution
    )
    assert sum(operations(e.first, e.last) for e in result.solution) >= sum(
        max(0, load - problem.capacity) for load in problem.loads
    )


def test_bad_input_is_refused_with_what_works() -> None:
    with pytest.raises(PlannerError, match="without tokens"):
        CoreAttention(((0,),), 1.0, 1.0, 1.1)
    with pytest.raises(PlannerError, match="give 1 or more"):
        CoreAttention(((3,),), 1.0, 1.0, 0.9)
    with pytest.raises(PlannerError, match="no groups or heads"):
        HeadLayout("a", 0, np.ones(1), np.ones(1))
    with pytest.raises(PlannerError, match="fits no degree"):
        DegreeProblem((1, 2), np.array([[1.0, 1.0], [np.inf, np.inf]]), 2)
    with pytest.raises(PlannerError, match="no whole blocks"):
        DegreeProblem((2,), np.array([[1.0]]), 5)
