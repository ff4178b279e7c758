"""The most jobs on time, against every choice of jobs."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.solvers.schedules.on_time import most_on_time

Job = tuple[int, int, int]


def feasible(jobs: list[Job]) -> bool:
    """Whether all are on time, one after the other in their order."""
    end = 0
    for release, deadline, work in jobs:
        end = max(end, release) + work
        if end > deadline:
            return False
    return True


def by_enumeration(jobs: list[Job]) -> int:
    for count in range(len(jobs), 0, -1):
        if any(feasible(list(chosen)) for chosen in combinations(jobs, count)):
            return count
    return 0


@st.composite
def agreeable(draw: st.DrawFn) -> list[Job]:
    count = draw(st.integers(1, 9))
    releases = sorted(draw(st.lists(st.integers(0, 20), min_size=count, max_size=count)))
    dues = sorted(draw(st.lists(st.integers(0, 25), min_size=count, max_size=count)))
    works = draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    return list(zip(releases, dues, works, strict=True))


@settings(max_examples=250, deadline=None)
@given(agreeable())
def test_as_many_are_on_time_as_in_the_best_choice_of_jobs(jobs: list[Job]) -> None:
    columns = np.array(jobs, dtype=float).T
    assert most_on_time(*columns) == by_enumeration(jobs)


@settings(max_examples=100, deadline=None)
@given(agreeable(), st.integers(0, 9))
def test_a_number_that_cannot_be_reached_is_given_up(jobs: list[Job], wanted: int) -> None:
    wanted = min(wanted, len(jobs))
    best = by_enumeration(jobs)
    assert most_on_time(*np.array(jobs, dtype=float).T, wanted=wanted) == (best if best >= wanted else -1)


def test_jobs_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="order"):
        most_on_time(np.array([1.0, 0.0]), np.array([2.0, 3.0]), np.array([1.0, 1.0]))
