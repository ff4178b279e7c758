"""Equal tasks over groups of machines: against every choice of numbers."""

from functools import partial
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.solvers.result import Status
from planner.solvers.schedules.even_finish import Machines, can_share, share_tasks

_GROUPS = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 9), st.integers(0, 20)), min_size=1)


def _done_s(slope: int, start: int, number: int) -> float:
    return float(slope * number + start)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 30), _GROUPS.map(lambda rows: rows[:3]))
def test_no_other_numbers_end_earlier(tasks: int, rows: list[tuple[int, int, int, int]]) -> None:
    groups = [Machines(count, unit) for count, unit, _, _ in rows]
    done_s = [partial(_done_s, slope, start) for _, _, slope, start in rows]
    choices = product(*(range(group.unit, tasks // group.count + 1, group.unit) for group in groups))
    legal = [n for n in choices if sum(group.count * k for group, k in zip(groups, n, strict=True)) == tasks]
    result = share_tasks(tasks, groups, done_s)
    assert can_share(tasks, groups) == bool(legal)
    assert (result.status is Status.OPTIMAL) == bool(legal)
    if result.solution is not None:
        assert result.solution in legal
        last = [max(f(k) for f, k in zip(done_s, n, strict=True)) for n in (*legal, result.solution)]
        assert last[-1] == min(last) == result.objective == result.bound


def test_faster_machines_take_more_and_few_numbers_are_tried() -> None:
    asked = []

    def slow(n: int) -> float:
        asked.append(n)
        return 3.0 * n

    result = share_tasks(1024, [Machines(4), Machines(4)], [lambda n: 1.0 * n, slow])
    assert result.solution == (192, 64)
    assert len(asked) < 40


def test_machines_are_counted() -> None:
    with pytest.raises(PlannerError, match="0 tasks"):
        share_tasks(0, [Machines(1)], [float])
