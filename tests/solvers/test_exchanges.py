"""Pairs of groups with the fewest crossings against every selection of pairs; bad input."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.solvers.result import Status
from planner.solvers.topology.exchanges import Exchanges, Group, fewest_crossings


def problem_of(seed: int, groups: int | None = None) -> Exchanges:
    draws = np.random.default_rng(seed)
    tors, lines, size = int(draws.integers(4, 7)), int(draws.integers(1, 4)), int(draws.integers(2, 4))
    if lines == 3:
        tors, size = 4, 2
    faulty = {(int(t), int(line)) for t in range(tors) for line in range(lines) if draws.random() < 0.25}
    asked = int(draws.integers(1, 5)) if groups is None else groups
    return Exchanges(tors, lines, int(draws.integers(1, 3)), size, asked, frozenset(faulty))


def groups_by_hand(problem: Exchanges) -> list[tuple[int, tuple[int, ...]]]:
    """Every ordered choice of ToRs of a line that keeps the rules."""
    rows = []
    for line in range(problem.lines):
        up = [tor for tor in range(problem.tors) if (tor, line) not in problem.faulty]
        for tors in itertools.permutations(up, problem.nodes_per_group):
            steps = [(b - a) % problem.tors for a, b in itertools.pairwise(tors)]
            if all(1 <= step <= problem.hops for step in steps) and sum(steps) < problem.tors:
                rows.append((line, tors))
    return rows


def fewest_by_hand(problem: Exchanges) -> float:
    """The fewest crossings of enough disjoint pairs, by trying every group as the partner of the first one taken."""
    rows = groups_by_hand(problem)
    nodes = [frozenset((tor, line) for tor in tors) for line, tors in rows]
    costs = {
        (a, b): sum(x != y for x, y in zip(rows[a][1], rows[b][1], strict=True))
        for a, b in itertools.combinations(range(len(rows)), 2)
        if not nodes[a] & nodes[b]
    }
    best = math.inf

    def extend(used: frozenset[tuple[int, int]], first: int, left: int, spent: int) -> None:
        nonlocal best
        if spent >= best:
            return
        if not left:
            best = spent
            return
        for (a, b), cost in costs.items():
            if a >= first and not (nodes[a] | nodes[b]) & used:
                extend(used | nodes[a] | nodes[b], a + 1, left - 1, spent + cost)

    extend(frozenset(), 0, -(-problem.groups // 2), 0)
    return best


def kept(problem: Exchanges, pairs: tuple[tuple[Group, Group], ...]) -> int:
    """Crossings of pairs, each held against the rules."""
    allowed = set(groups_by_hand(problem))
    used = [node for pair in pairs for group in pair for node in group.nodes]
    assert len(used) == len(set(used))
    assert all((group.line, group.tors) in allowed for pair in pairs for group in pair)
    assert 2 * len(pairs) >= problem.groups
    return sum(a != b for first, second in pairs for a, b in zip(first.tors, second.tors, strict=True))


@pytest.mark.parametrize("seed", range(100))
def test_no_pairs_cross_less(seed: int) -> None:
    problem = problem_of(seed)
    fewest = fewest_by_hand(problem)
    result = fewest_crossings(problem)
    if math.isinf(fewest):
        assert result.status is Status.INFEASIBLE
        return
    assert result.status is Status.OPTIMAL
    assert result.solution is not None
    assert result.objective == result.bound == kept(problem, result.solution.pairs) == fewest


@settings(max_examples=15)
@given(st.integers(0, 10_000))
def test_fewer_groups_never_cross_more(seed: int) -> None:
    few, more = fewest_crossings(problem_of(seed, 2)), fewest_crossings(problem_of(seed, 4))
    if more.objective is not None:
        assert few.objective is not None
        assert few.objective <= more.objective


def test_a_time_that_is_over_leaves_an_answer_and_a_bound_below_it() -> None:
    problem = Exchanges(12, 3, 2, 4, 6, frozenset({(0, 0), (5, 1), (6, 1), (3, 2)}))
    result = fewest_crossings(problem, time_limit_s=1e-3)
    assert result.solution is not None
    assert result.objective is not None
    assert result.bound is not None
    assert result.bound <= result.objective == kept(problem, result.solution.pairs)


@pytest.mark.parametrize(
    ("figures", "says"),
    [
        ((4, 1, 0, 2, 2), "0 hops"),
        ((4, 1, 1, 5, 2), "groups of 5 nodes along lines of 4"),
        ((4, 1, 1, 2, 2, frozenset({(7, 0)})), "node 7 of line 0 is out"),
    ],
)
def test_figures_that_cannot_be_are_refused(figures: tuple[object, ...], says: str) -> None:
    with pytest.raises(PlannerError, match=says):
        Exchanges(*figures)  # type: ignore[arg-type]  # rows of mixed types


def test_more_groups_than_can_be_listed_are_refused() -> None:
    with pytest.raises(PlannerError, match="more than 20000 groups"):
        fewest_crossings(Exchanges(64, 2, 6, 8, 8))
