"""The best few distinct solutions against all of them, listed by the definition."""

import random
from collections.abc import Callable
from itertools import combinations, product

import pytest

from planner.alternatives.best_distinct import best_distinct

Solution = tuple[float, frozenset[str]]


def _by_definition(solutions: list[Solution], most: int) -> list[float]:
    """Values of the best, then of the best of all that lack a part of each listed one."""
    listed: list[Solution] = []
    for value, parts in sorted(solutions, key=lambda solution: solution[0]):
        if len(listed) < most and not any(other <= parts for _, other in listed):
            listed.append((value, parts))
    return [value for value, _ in listed]


def _solver(
    solutions: list[Solution], asked: list[frozenset[str]]
) -> Callable[[frozenset[str]], tuple[float, frozenset[str], str] | None]:
    def solve(without: frozenset[str]) -> tuple[float, frozenset[str], str] | None:
        asked.append(without)
        left = [solution for solution in solutions if not solution[1] & without]
        if not left:
            return None
        value, parts = min(left, key=lambda solution: solution[0])
        return value, parts, f"{value:.6f}"

    return solve


@pytest.mark.parametrize("seed", range(100))
def test_the_best_distinct_solutions_are_those_of_the_definition(seed: int) -> None:
    rng = random.Random(seed)
    names = "abcdefg"[: rng.randint(2, 7)]
    subsets = [frozenset(parts) for size in range(1, len(names) + 1) for parts in combinations(names, size)]
    solutions = [(rng.random(), parts) for parts in rng.sample(subsets, rng.randint(1, min(40, len(subsets))))]
    most = rng.randint(1, 20)
    asked: list[frozenset[str]] = []
    ranked = best_distinct(_solver(solutions, asked), most)
    assert [entry.value for entry in ranked] == _by_definition(solutions, most)
    assert len(asked) == len(set(asked))
    for place, entry in enumerate(ranked):
        assert not entry.parts & entry.without
        assert not any(other.parts <= entry.parts for other in ranked[:place])


@pytest.mark.parametrize("seed", range(20))
def test_solutions_with_one_value_an_axis_are_told_apart_by_any_of_them(seed: int) -> None:
    rng = random.Random(seed)
    grid = [frozenset((f"tp={a}", f"pp={b}", f"cp={c}")) for a, b, c in product(range(3), range(4), range(2))]
    solutions = [(rng.random(), parts) for parts in grid for _ in range(2)]
    ranked = best_distinct(_solver(solutions, []), len(grid) + 1)
    best_of = {parts: min(value for value, other in solutions if other == parts) for parts in grid}
    assert [entry.value for entry in ranked] == sorted(best_of.values())


def test_a_problem_without_solutions_has_none() -> None:
    assert best_distinct(_solver([], []), 3) == []
