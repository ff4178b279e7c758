"""Fewest cells that change and shards cut anew, against trying all; equal tasks against trying all."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.solvers.layouts.reshuffle import fewest_moves, most_replicas, overlaps, recut
from planner.solvers.result import Status
from planner.solvers.schedules.equal_tasks import spread_tasks

_cells = st.lists(st.integers(0, 2), min_size=1, max_size=3)


def _fewest_by_trying(alive: list[int], blank: int, replicas: int) -> int | None:
    """Every cell takes any kind or none; the least that take another than their own."""
    cells = [kind for kind, count in enumerate(alive) for _ in range(count)] + [-1] * blank
    best = None
    for after in itertools.product(range(-1, len(alive)), repeat=len(cells)):
        if all(after.count(kind) >= replicas for kind in range(len(alive))):
            loads = sum(new != old for old, new in zip(cells, after, strict=True) if new != -1)
            best = loads if best is None else min(best, loads)
    return best


@settings(deadline=None, max_examples=30)
@given(_cells, st.integers(0, 1))
def test_no_other_reassignment_moves_fewer_cells(alive: list[int], blank: int) -> None:
    result = fewest_moves(alive, blank)
    assert result.solution is not None
    assert result.solution.replicas == most_replicas(alive, blank)
    assert result.solution.loads == _fewest_by_trying(alive, blank, result.solution.replicas)
    assert result.gap == 0.0


def test_a_lost_cell_is_replaced_by_a_spare_one() -> None:
    solution = fewest_moves([4, 3, 4, 4], blank=1).solution
    assert solution is not None
    assert (solution.replicas, solution.changes, solution.idle) == (4, ((-1, 1),), ())


def test_without_spares_the_broken_replica_gives_its_cells() -> None:
    solution = fewest_moves([3, 4, 2, 4]).solution
    assert solution is not None
    assert (solution.replicas, solution.loads) == (3, 1)


def test_too_few_cells_form_no_replicas() -> None:
    assert fewest_moves([1, 0], replicas=1).status is Status.INFEASIBLE


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 4), st.integers(1, 4), st.data())
def test_no_other_assignment_of_pieces_keeps_more(pieces: int, after: int, data: st.DataObject) -> None:
    gone = data.draw(st.sets(st.integers(0, pieces - 1), max_size=pieces - 1))
    solution = recut(pieces, sorted(gone), after).solution
    assert solution is not None
    overlap = overlaps(pieces, after)
    left: list[int | None] = [*(index for index in range(pieces) if index not in gone), *([None] * after)]
    best = max(
        sum(overlap[holder, piece] for piece, holder in enumerate(holders) if holder is not None)
        for holders in itertools.permutations(left, after)
    )
    assert solution.kept == pytest.approx(best)
    assert solution.kept + solution.moved + solution.lost == pytest.approx(1.0)


def test_pieces_that_stay_as_they_are_do_not_move() -> None:
    solution = recut(8, [], 8).solution
    assert solution is not None
    assert (solution.kept, solution.moved, solution.lost) == (1.0, 0.0, 0.0)


@settings(deadline=None)
@given(st.integers(0, 6), st.lists(st.floats(0.1, 5), min_size=1, max_size=3))
def test_no_other_spread_of_equal_tasks_ends_earlier(tasks: int, task_s: list[float]) -> None:
    result = spread_tasks(tasks, task_s)
    tried = [
        max((count * seconds for count, seconds in zip(counts, task_s, strict=True)), default=0.0)
        for counts in itertools.product(range(tasks + 1), repeat=len(task_s))
        if sum(counts) == tasks
    ]
    assert result.objective == pytest.approx(min(tried))


def test_machines_take_no_more_than_fits() -> None:
    assert spread_tasks(5, [1.0, 10.0], [3, 9]).solution == (3, 2)
    assert spread_tasks(5, [1.0, 10.0], [3, 1]).status is Status.INFEASIBLE


def test_impossible_inputs_are_refused() -> None:
    with pytest.raises(PlannerError, match="above 0"):
        spread_tasks(1, [0.0])
    with pytest.raises(PlannerError, match="none is below 0"):
        fewest_moves([1, -1])
    with pytest.raises(PlannerError, match="without \\[7\\]"):
        recut(4, [7], 3)
