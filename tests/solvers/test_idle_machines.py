"""Machines shared out to jobs of equal tasks: against every division of the machines."""

from itertools import product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.solvers.result import Status
from planner.solvers.schedules.equal_tasks import spread_tasks
from planner.solvers.schedules.idle_machines import TaskJob, share_machines, ways_of
from planner.solvers.schedules.idle_worth import worth_of_machines

_JOB = st.builds(
    lambda tasks, fast, slow, most, group, more: TaskJob(
        tasks, {"a": float(fast), "b": float(slow)}, {"a": most, "b": most}, group, float(more)
    ),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(1, 2),
    st.integers(0, 2),
)


def _round_s(job: TaskJob, taken: tuple[int, ...]) -> float | None:
    """The shortest round on so many machines of each kind, tasks spread one by one."""
    kinds = [kind for kind, number in zip(("a", "b"), taken, strict=True) for _ in range(number // job.group)]
    if not kinds:
        return None
    result = spread_tasks(job.tasks, [job.task_s[kind] for kind in kinds], [job.most[kind] for kind in kinds])
    return None if result.objective is None else result.objective + job.more_s


@settings(max_examples=40, deadline=None)
@given(st.lists(_JOB, min_size=1, max_size=2), st.integers(0, 3), st.integers(1, 4))
def test_no_other_division_makes_the_jobs_faster(jobs: list[TaskJob], first: int, second: int) -> None:
    machines = {"a": first, "b": second}
    alone = [_round_s(job, (first, second)) for job in jobs]
    best = 0.0
    for split in product(product(range(first + 1), range(second + 1)), repeat=len(jobs)):
        if any(sum(part[k] for part in split) > number for k, number in enumerate(machines.values())):
            continue
        rounds = [_round_s(job, part) for job, part in zip(jobs, split, strict=True)]
        speeds = (own / round_s if own and round_s else 0.0 for own, round_s in zip(alone, rounds, strict=True))
        best = max(best, sum(speeds))
    result = share_machines(jobs, machines)
    assert result.status is Status.OPTIMAL
    assert result.objective == pytest.approx(best)
    assert result.bound == pytest.approx(best)
    assert result.solution is not None
    for job, way in zip(jobs, result.solution, strict=True):
        assert way is None or way.round_s == pytest.approx(_round_s(job, way.machines))


def test_jobs_with_least_speeds_are_as_fast_together_as_under_the_best_division_that_keeps_them() -> None:
    draws = Random(5)
    for _ in range(100):
        first, second = draws.randint(0, 3), draws.randint(1, 3)
        jobs = [
            TaskJob(
                draws.randint(1, 4),
                {"a": float(draws.randint(1, 3)), "b": float(draws.randint(1, 5))},
                {"a": draws.randint(1, 4), "b": draws.randint(1, 4)},
                worth=draws.choice([0.5, 1.0, 2.0]),
                reference_s=2.0,
                least_speed=draws.choice([0.0, 0.2, 0.5]),
            )
            for _ in range(2)
        ]
        best = -1.0
        for split in product(product(range(first + 1), range(second + 1)), repeat=2):
            if any(sum(part[k] for part in split) > number for k, number in enumerate((first, second))):
                continue
            rounds = [_round_s(job, part) for job, part in zip(jobs, split, strict=True)]
            speeds = [2.0 / round_s if round_s else 0.0 for round_s in rounds]
            if all(speed >= job.least_speed for speed, job in zip(speeds, jobs, strict=True)):
                best = max(best, sum(job.worth * speed for speed, job in zip(speeds, jobs, strict=True)))
        result = share_machines(jobs, {"a": first, "b": second})
        if best < 0.0:
            assert result.status is Status.INFEASIBLE
        else:
            assert result.objective == pytest.approx(best)
            assert result.bound == pytest.approx(best)


def test_fast_machines_go_where_they_are_worth_most() -> None:
    even = TaskJob(4, {"a": 1.0, "b": 1.1}, {"a": 4, "b": 4})
    keen = TaskJob(4, {"a": 1.0, "b": 5.0}, {"a": 4, "b": 4})
    result = share_machines([even, keen], {"a": 4, "b": 4})
    assert result.solution is not None
    assert [way.machines for way in result.solution if way is not None] == [(0, 4), (4, 0)]


def test_ways_shorten_as_machines_grow_and_jobs_need_work() -> None:
    ways = ways_of(TaskJob(4, {"a": 1.0}, {"a": 4}), {"a": 4})
    assert [(way.machines, way.round_s) for way in ways] == [((4,), 1.0), ((2,), 2.0), ((1,), 4.0)]
    with pytest.raises(PlannerError, match="no tasks"):
        TaskJob(0, {"a": 1.0}, {"a": 1})


def test_the_worth_of_every_number_of_machines_is_that_of_the_best_division_of_them() -> None:
    draws = Random(11)
    for _ in range(25):
        jobs = [
            TaskJob(
                draws.randint(1, 4),
                {"a": float(draws.randint(1, 3)), "b": float(draws.randint(1, 5))},
                {"a": draws.randint(1, 4), "b": draws.randint(1, 4)},
                worth=float(draws.randint(1, 3)),
                reference_s=2.0,
                least_speed=draws.choice([0.0, 0.3]),
            )
            for _ in range(draws.randint(1, 3))
        ]
        worth = worth_of_machines(jobs, {"a": 2, "b": 2})
        for first, second in product(range(3), repeat=2):
            result = share_machines(jobs, {"a": first, "b": second})
            expected = float("-inf") if result.objective is None else result.objective
            assert worth[first, second] == pytest.approx(expected)


def test_more_machines_than_can_be_told_apart_are_refused() -> None:
    with pytest.raises(PlannerError, match="machines of 3 kinds"):
        worth_of_machines([], dict.fromkeys("abc", 999))
