"""Stages x replicas on racks against every placement of every cell; the bound; bad input."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.solvers.result import Status
from planner.solvers.topology.rack_patterns import choose_patterns, patterns_within, relaxed_bound_s
from planner.solvers.topology.racks import capacity_bound_s, decode, place_on_racks, rank_orders
from planner.solvers.topology.racks_problem import Racks, SharedGradients


def problem_of(seed: int, *, stages: int, replicas: int, racks: int) -> Racks:
    draws = np.random.default_rng(seed)
    free = draws.integers(0, 5, racks)
    while free.sum() < stages * replicas:
        free[draws.integers(0, racks)] += 1
    return Racks(
        replicas,
        tuple(free.tolist()),
        tuple(draws.choice([1.0, 2.0, 4.0], racks).tolist()),
        tuple(draws.integers(0, 9, stages).astype(float).tolist()),
        tuple(draws.integers(0, 5, stages - 1).astype(float).tolist()),
    )


def busiest_s(problem: Racks, rack: tuple[tuple[int, ...], ...]) -> float:
    """Seconds of the busiest uplink of a rack for every cell, [S][D], by the words of the problem."""
    times = []
    for b, rate in enumerate(problem.uplink_bytes_per_s_B):
        sent = 0.0
        for s, row in enumerate(rack):
            inside = [cell == b for cell in row]
            sent += problem.gradient_bytes_S[s] if any(inside) and not all(inside) else 0.0
        for s, (row, after) in enumerate(itertools.pairwise(rack)):
            leaving = sum((x == b) != (y == b) for x, y in zip(row, after, strict=True))
            sent += problem.activation_bytes_S[s] * leaving
        times.append(sent / rate)
    return max(times)


@pytest.mark.parametrize("seed", range(100))
def test_no_placement_of_cells_has_a_less_busy_uplink(seed: int) -> None:
    stages, replicas = ((2, 2), (2, 3), (3, 2), (1, 4), (4, 1))[seed % 5]
    problem = problem_of(seed, stages=stages, replicas=replicas, racks=2 + seed % 2)
    least = np.inf
    for cells in itertools.product(range(len(problem.free_B)), repeat=stages * replicas):
        if all(cells.count(b) <= free for b, free in enumerate(problem.free_B)):
            rows = tuple(cells[s * replicas : (s + 1) * replicas] for s in range(stages))
            least = min(least, busiest_s(problem, rows))
    result = place_on_racks(problem)
    assert result.status is Status.OPTIMAL
    assert result.solution is not None
    assert result.objective == pytest.approx(least)
    assert result.bound == pytest.approx(least)
    assert busiest_s(problem, result.solution.rack_SD) == pytest.approx(least)
    placed = [rack for row in result.solution.rack_SD for rack in row]
    assert all(placed.count(b) <= free for b, free in enumerate(problem.free_B))


@pytest.mark.parametrize("seed", range(0, 100, 4))
def test_patterns_have_a_bound_that_no_placement_crosses_and_choices_that_keep_it(seed: int) -> None:
    problem = problem_of(seed, stages=2 + seed % 3, replicas=2, racks=3)
    least = place_on_racks(problem).objective  # proven by the tables of all choices
    worst = max(float(problem.uplinks_s(counts).max()) for counts in rank_orders(problem))
    patterns = patterns_within(problem, worst + 1.0)
    assert least is not None
    assert patterns is not None
    bound = relaxed_bound_s(patterns, worst + 1.0, 0.0)
    assert bound <= least * (1.0 + 1e-9)
    count_BS, raised = choose_patterns(patterns, worst + 1.0, bound)
    assert bound <= raised <= least * (1.0 + 1e-9)
    if count_BS is not None:
        rows = decode(problem, count_BS).rack_SD
        assert busiest_s(problem, rows) >= least * (1.0 - 1e-9)
        assert [sum(row.count(b) for row in rows) <= free for b, free in enumerate(problem.free_B)] == [True] * 3
    few = patterns_within(problem, 0.0)
    assert few is not None
    assert float(few.sent_P.max()) == 0.0


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 5), st.integers(1, 5))
def test_no_rank_order_crosses_the_bound_and_cells_decode_to_their_counts(
    seed: int, stages: int, replicas: int, racks: int
) -> None:
    problem = problem_of(seed, stages=stages, replicas=replicas, racks=racks)
    bound = capacity_bound_s(problem)
    for count_BS in itertools.islice(rank_orders(problem), 20):
        plan = decode(problem, count_BS)
        assert busiest_s(problem, plan.rack_SD) == pytest.approx(float(problem.uplinks_s(count_BS).max()))
        assert max(plan.uplinks_s) >= bound * (1.0 - 1e-9)


def test_a_large_job_has_a_bound_below_its_answer_and_beats_every_rank_order() -> None:
    draws = np.random.default_rng(3)
    free = tuple(draws.integers(5, 11, 10).tolist())
    gradients = tuple(draws.uniform(2e9, 4e9, 8).tolist())
    problem = Racks(8, free, (5e10,) * 10, gradients, tuple(draws.uniform(9e8, 12e8, 7).tolist()))
    result = place_on_racks(problem)
    assert result.objective is not None
    assert result.bound is not None
    assert result.solution is not None
    assert result.bound <= result.objective == pytest.approx(busiest_s(problem, result.solution.rack_SD))
    assert result.objective < 0.75 * min(float(problem.uplinks_s(counts).max()) for counts in rank_orders(problem))
    assert result.objective < 1.03 * result.bound


@pytest.mark.parametrize(
    ("figures", "says"),
    [
        ((2, (1, 1), (1.0, 1.0), (1.0, 1.0), (1.0,)), "4 nodes are needed, and 2 are free\n.*free 2 more"),
        ((2, (4,), (0.0,), (1.0,), ()), "uplink of 0 bytes/s"),
        ((2, (4,), (float("nan"),), (1.0,), ()), "uplink of nan bytes/s"),
        ((1, (4,), (1.0,), (1.0, 1.0), ()), "2 stages with 0 edges"),
        ((1, (4,), (1.0,), (-1.0,), ()), "-1 bytes are sent"),
    ],
)
def test_figures_that_cannot_be_are_refused(figures: tuple[object, ...], says: str) -> None:
    with pytest.raises(PlannerError, match=says):
        Racks(*figures)  # type: ignore[arg-type]  # rows of mixed types


@pytest.mark.parametrize("seed", range(100))
def test_no_placement_beats_the_bound_of_gradients_known_from_below_and_together(seed: int) -> None:
    stages, replicas = ((2, 2), (2, 3), (3, 2), (1, 4), (4, 2))[seed % 5]
    problem = problem_of(seed, stages=stages, replicas=replicas, racks=2 + seed % 2)
    exact = place_on_racks(problem)
    assert exact.status is Status.OPTIMAL
    assert exact.objective is not None
    sent = problem.gradient_bytes_S
    shared = SharedGradients(sum(sent), max(sent))
    fewest = replace(problem, gradient_bytes_S=(min(sent),) * stages)
    assert capacity_bound_s(fewest) - 1e-9 <= capacity_bound_s(fewest, shared) <= exact.objective + 1e-9
