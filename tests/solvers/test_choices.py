"""One option for every item within a capacity, against trying all."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.solvers.choices import ChoiceProblem, ItemClass, best_choices, total_time
from planner.solvers.result import Status

_options = st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), min_size=1, max_size=4).map(tuple)
_groups = st.lists(st.builds(ItemClass, st.integers(0, 2), _options), min_size=1, max_size=3).map(tuple)


def _brute_force(problem: ChoiceProblem) -> float | None:
    items = [group.options for group in problem.groups for _ in range(group.count)]
    fitting = [
        sum(time for time, _ in chosen)
        for chosen in itertools.product(*items)
        if sum(size for _, size in chosen) <= problem.capacity
    ]
    return min(fitting, default=None)


@given(_groups, st.floats(0, 60))
def test_the_best_choice_is_that_of_trying_all(groups: tuple[ItemClass, ...], capacity: float) -> None:
    """Sums that differ from the capacity by rounding alone may count as fitting."""
    problem = ChoiceProblem(groups, capacity)
    result, fitting = best_choices(problem), _brute_force(problem)
    rounded = _brute_force(ChoiceProblem(groups, capacity * (1 + 1e-9) + 1e-9))
    if result.solution is None:
        assert fitting is None
        return
    used = sum(
        count * size
        for group, counts in zip(groups, result.solution, strict=True)
        for count, (_, size) in zip(counts, group.options, strict=True)
    )
    assert used <= capacity * (1 + 1e-9) + 1e-9
    assert result.objective is not None
    assert rounded is not None
    assert rounded - 1e-9 <= result.objective
    assert fitting is None or result.objective <= fitting + 1e-9
    assert result.gap == 0.0


@given(_groups, st.floats(0, 40), st.floats(0, 20))
def test_more_room_is_never_slower(groups: tuple[ItemClass, ...], capacity: float, more: float) -> None:
    tight, roomy = (best_choices(ChoiceProblem(groups, room)) for room in (capacity, capacity + more))
    if tight.objective is not None:
        assert roomy.objective is not None
        assert roomy.objective <= tight.objective * (1 + 1e-9) + 1e-12


def test_every_item_has_one_option() -> None:
    problem = ChoiceProblem((ItemClass(80, ((0.0, 5.0), (1.0, 3.3), (1.7, 2.1), (4.0, 0.4))),), 200.0)
    result = best_choices(problem)
    assert result.solution is not None
    assert sum(result.solution[0]) == 80
    assert total_time(problem, result.solution) == result.objective


def test_items_too_large_together_have_no_choice() -> None:
    assert best_choices(ChoiceProblem((ItemClass(3, ((1.0, 2.0),)),), 5.9)).status is Status.INFEASIBLE


def test_negative_sizes_are_refused() -> None:
    with pytest.raises(PlannerError, match="at least 0"):
        ChoiceProblem((ItemClass(1, ((1.0, -2.0),)),), 5.0)
