"""Contiguous partition with memory: against every cut, against the integer program, and what must always hold."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partition_oracle import Stage, cuts, least_slowest, partition_model, stage_bytes

from planner.errors import PlannerError
from planner.solvers.backends.solve import solve
from planner.solvers.partition import Partition, PartitionProblem, SecondMemory, partition, stage_times
from planner.solvers.result import Status


@st.composite
def _problems(draw: st.DrawFn) -> PartitionProblem:
    items, stages, options = draw(st.integers(1, 6)), draw(st.integers(1, 3)), draw(st.integers(1, 3))

    def drawn(low: int, high: int, *shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        size = int(np.prod(shape))
        values = draw(st.lists(st.integers(low, high), min_size=size, max_size=size))
        return np.array(values, dtype=np.float64).reshape(shape)

    return PartitionProblem(
        time_OL=drawn(0, 9, options, items),
        in_flight_OL=drawn(0, 5, options, items),
        fixed_L=drawn(0, 3, items),
        depth_S=drawn(0, 3, stages),
        more_time_S=drawn(0, 4, stages),
        more_bytes_S=drawn(0, 4, stages),
        capacity_S=drawn(0, 40, stages),
        least_S=drawn(0, 1, stages).astype(np.int64),
    )


def _plain(problem: PartitionProblem) -> tuple[list[list[float]], list[list[float]], list[float], list[Stage]]:
    """Times, bytes, fixed bytes and stages as the oracle takes them."""
    stages = zip(
        problem.depth_S.tolist(),
        problem.more_time_S.tolist(),
        problem.more_bytes_S.tolist(),
        problem.capacity_S.tolist(),
        problem.least_S.tolist(),
        strict=True,
    )
    return problem.time_OL.tolist(), problem.in_flight_OL.tolist(), problem.fixed_L.tolist(), list(stages)


def _oracle(problem: PartitionProblem) -> float | None:
    return least_slowest(*_plain(problem))


def _fits(problem: PartitionProblem, solution: Partition) -> bool:
    counts = np.array(solution.counts)
    _, resident, fixed, stages = _plain(problem)
    used = np.array(stage_bytes(resident, fixed, stages, solution.counts, solution.options))
    return bool((used <= problem.capacity_S * (1 + 1e-9) + 1e-9).all() and (counts >= problem.least_S).all())


@settings(max_examples=150, deadline=None)
@given(_problems())
def test_the_slowest_stage_is_that_of_the_best_of_all_cuts_and_options(problem: PartitionProblem) -> None:
    result, wanted = partition(problem), _oracle(problem)
    assert result.objective == (None if wanted is None else pytest.approx(wanted))
    assert (result.status is Status.OPTIMAL) == (wanted is not None)
    if result.solution is not None:
        assert _fits(problem, result.solution)
        assert sum(result.solution.counts) == problem.num_items
        assert stage_times(problem, result.solution).max() == pytest.approx(result.objective)


@settings(max_examples=80, deadline=None)
@given(_problems(), st.data())
def test_a_second_memory_binds_like_the_first(problem: PartitionProblem, data: st.DataObject) -> None:
    """The best of all cuts that keep to both, by their definitions."""

    def drawn(high: int, size: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        return np.array(data.draw(st.lists(st.integers(0, high), min_size=size, max_size=size)), dtype=np.float64)

    items, stages = problem.num_items, problem.num_stages
    second = SecondMemory(drawn(4, items), drawn(4, items), drawn(30, stages))
    alone = replace(problem, time_OL=problem.time_OL[:1], in_flight_OL=problem.in_flight_OL[:1], second=second)
    result, legal = partition(alone), dict[tuple[int, ...], float]()
    for counts in (each for each in product(range(items + 1), repeat=stages) if sum(each) == items):
        stage_L = np.repeat(np.arange(stages), counts)
        used_S = np.bincount(stage_L, second.fixed_L, stages) + alone.depth_S * np.bincount(
            stage_L, second.in_flight_L, stages
        )
        cut = Partition(counts, (0,) * items)
        if _fits(alone, cut) and (used_S <= second.capacity_S + 1e-9).all():
            legal[counts] = float(stage_times(alone, cut).max())
    assert result.objective == (pytest.approx(min(legal.values())) if legal else None)
    assert result.solution is None or result.solution.counts in legal


@pytest.mark.parametrize("seed", range(4))
def test_the_integer_program_agrees(seed: int) -> None:
    rng = np.random.default_rng(seed)
    time_L, in_flight_L = rng.uniform(1, 3, 7), rng.uniform(1, 3, 7)
    problem = PartitionProblem(
        time_OL=np.stack([time_L, 1.3 * time_L]),
        in_flight_OL=np.stack([in_flight_L, 0.3 * in_flight_L]),
        fixed_L=rng.uniform(1, 2, 7),
        depth_S=np.array([3.0, 2.0, 1.0]),
        more_time_S=np.array([0.5, 0.0, 1.0]),
        more_bytes_S=np.array([1.0, 0.0, 1.0]),
        capacity_S=np.full(3, 12.0),
        least_S=np.zeros(3, np.int64),
    )
    referee = solve(partition_model(*_plain(problem)), backend="mathopt-highs")
    result = partition(problem)
    assert result.status is referee.status
    assert result.objective == pytest.approx(referee.objective, abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(_problems(), st.integers(0, 2))
def test_more_memory_never_makes_the_slowest_stage_slower(problem: PartitionProblem, stage: int) -> None:
    more_S = problem.capacity_S.copy()
    more_S[stage % len(more_S)] += 5.0
    fields = {name: getattr(problem, name) for name in PartitionProblem.__slots__}
    before, after = partition(problem), partition(PartitionProblem(**(fields | {"capacity_S": more_S})))
    if before.objective is not None:
        assert after.objective is not None
        assert after.objective <= before.objective * (1 + 1e-9)


def test_equal_cuts_of_equal_items_are_even() -> None:
    unit = np.ones(4)
    problem = PartitionProblem(
        np.ones((1, 10)), np.zeros((1, 10)), np.zeros(10), unit, 0 * unit, 0 * unit, unit, unit.astype(np.int64)
    )
    solution = partition(problem).solution
    assert solution is not None
    assert sorted(solution.counts) == [2, 2, 3, 3]


def test_the_stage_that_holds_most_is_the_one_that_gives_time_for_memory() -> None:
    problem = PartitionProblem(
        time_OL=np.array([[1.0] * 4, [1.3] * 4]),
        in_flight_OL=np.array([[4.0] * 4, [1.0] * 4]),
        fixed_L=np.zeros(4),
        depth_S=np.array([2.0, 1.0]),
        more_time_S=np.zeros(2),
        more_bytes_S=np.zeros(2),
        capacity_S=np.array([10.0, 10.0]),
        least_S=np.ones(2, np.int64),
    )
    result = partition(problem)
    assert result.solution == Partition((2, 2), (0, 1, 0, 0)) or result.solution == Partition((2, 2), (1, 0, 0, 0))
    assert result.objective == pytest.approx(2.3)


def test_figures_of_different_sizes_and_negative_ones_are_refused() -> None:
    unit = np.ones(2)
    with pytest.raises(PlannerError, match="differ in number"):
        PartitionProblem(np.ones((1, 3)), np.ones((1, 3)), np.ones(4), unit, unit, unit, unit, unit.astype(np.int64))
    with pytest.raises(PlannerError, match="at least 0"):
        PartitionProblem(-np.ones((1, 3)), np.ones((1, 3)), np.ones(3), unit, unit, unit, unit, unit.astype(np.int64))


@settings(max_examples=80, deadline=None)
@given(_problems(), st.data())
def test_stages_of_different_speed_are_cut_as_the_best_of_all_cuts(
    problem: PartitionProblem, data: st.DataObject
) -> None:
    stages, items = problem.num_stages, problem.num_items
    flat = data.draw(st.lists(st.integers(0, 9), min_size=stages * items, max_size=stages * items))
    time_SL = np.array(flat, dtype=np.float64).reshape(stages, items)
    mixed = replace(problem, time_OL=time_SL[:1], in_flight_OL=problem.in_flight_OL[:1], time_SL=time_SL)
    best = None
    for counts in cuts(items, stages):
        solution = Partition(counts, (0,) * items)
        if _fits(mixed, solution):
            slowest = float(stage_times(mixed, solution).max())
            best = slowest if best is None else min(best, slowest)
    result = partition(mixed)
    assert result.objective == (None if best is None else pytest.approx(best))
    assert (result.status is Status.OPTIMAL) == (best is not None)
    if result.solution is not None:
        assert _fits(mixed, result.solution)


def test_times_by_stage_come_with_one_option() -> None:
    unit, per_stage = np.ones((1, 3)), np.ones(2)
    with pytest.raises(PlannerError, match="times by stage"):
        PartitionProblem(
            unit, unit, np.ones(3), per_stage, per_stage, per_stage, per_stage, np.zeros(2, np.int64), np.ones((3, 3))
        )
