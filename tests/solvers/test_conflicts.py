"""Conflicts against brute force, the number of questions asked, and how far a limit must move."""

import itertools

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.solvers.conflicts import minimal_conflict, nearest_candidate, nearest_value, smallest_conflict

Sets = list[frozenset[int]]
CONFLICTS = st.lists(st.frozensets(st.integers(0, 8), min_size=1, max_size=4), min_size=1, max_size=4)


class Oracle:
    """Feasible unless the limits contain one of the conflicts; counts its calls."""

    def __init__(self, conflicts: Sets) -> None:
        self.conflicts = conflicts
        self.calls = 0

    def __call__(self, limits: frozenset[int]) -> bool:
        self.calls += 1
        return not any(conflict <= limits for conflict in self.conflicts)


@settings(max_examples=200, deadline=None)
@given(CONFLICTS, st.permutations(range(9)))
def test_a_conflict_is_infeasible_and_any_member_less_is_feasible(conflicts: Sets, limits: list[int]) -> None:
    oracle = Oracle(conflicts)
    result = minimal_conflict(limits, oracle)
    assert not oracle(frozenset(result))
    assert all(oracle(frozenset(result) - {member}) for member in result)
    assert list(result) == [limit for limit in limits if limit in result]


@settings(max_examples=200, deadline=None)
@given(CONFLICTS, st.integers(1, 6))
def test_few_limits_are_filtered_by_deletion_to_the_same_guarantee(conflicts: Sets, count: int) -> None:
    oracle = Oracle(conflicts)
    limits = range(count)
    assume(not oracle(frozenset(limits)))
    result = minimal_conflict(limits, oracle)
    assert not oracle(frozenset(result))
    assert all(oracle(frozenset(result) - {member}) for member in result)


@settings(max_examples=200, deadline=None)
@given(CONFLICTS)
def test_the_smallest_conflict_has_no_smaller_rival(conflicts: Sets) -> None:
    oracle = Oracle(conflicts)
    result = smallest_conflict(range(9), oracle)
    assert not oracle(frozenset(result))
    assert len(result) == min(
        size for size in range(10) for chosen in itertools.combinations(range(9), size) if not oracle(frozenset(chosen))
    )


def test_dividing_asks_few_questions() -> None:
    oracle = Oracle([frozenset({17, 40})])
    assert minimal_conflict(range(64), oracle) == (17, 40)
    assert oracle.calls < 30


def test_nothing_feasible_at_all_is_an_empty_conflict() -> None:
    assert minimal_conflict("abc", lambda _: False) == ()
    assert smallest_conflict("abc", lambda _: False) == ()


def test_limits_that_hold_together_have_no_conflict() -> None:
    with pytest.raises(PlannerError, match="no conflict"):
        minimal_conflict("abc", lambda _: True)


@settings(max_examples=100, deadline=None)
@given(st.floats(0.1, 100.0), st.floats(1.001, 50.0), st.sampled_from([1, -1]))
def test_the_nearest_value_is_feasible_and_within_tolerance(current: float, factor: float, direction: int) -> None:
    threshold = current * factor if direction > 0 else current / factor
    furthest = current * 60.0 if direction > 0 else 0.0

    def feasible_at(value: float) -> bool:
        return value >= threshold if direction > 0 else value <= threshold

    result = nearest_value(feasible_at, current, direction, furthest=furthest, tolerance=1e-4)
    assert result is not None
    assert feasible_at(result)
    assert abs(result - threshold) <= 2e-4 * abs(result - current) + 1e-12


def test_no_value_is_nearest_when_the_furthest_fails_and_the_current_when_it_holds() -> None:
    assert nearest_value(lambda value: value > 10.0, 1.0, 1, furthest=9.0) is None
    assert nearest_value(lambda value: value >= 1.0, 1.0, 1, furthest=9.0) == 1.0
    assert nearest_value(lambda value: value >= 3.0, 0.0, 1, furthest=9.0) == pytest.approx(3.0, rel=2e-3)


def test_the_nearest_candidate_is_the_first_that_works() -> None:
    candidates = [8, 10, 12, 16, 24]
    assert nearest_candidate(lambda devices: devices >= 11, candidates) == 12
    assert nearest_candidate(lambda devices: devices >= 8, candidates) == 8
    assert nearest_candidate(lambda devices: devices >= 25, candidates) is None
