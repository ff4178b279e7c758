"""Fused pipelines: equal to trying every order, legal by an independent reading, bounded, published results met."""

import csv
from pathlib import Path

import numpy as np
import pytest
from fused_oracle import least_makespan
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.solvers.flow_shop import FlowShop, ShopSchedule, read_off
from planner.solvers.result import Status
from planner.solvers.schedules.fused_pipelines import (
    FusedProblem,
    Pipeline,
    lower_bound,
    one_after_the_other,
    solve_fused,
)

INSTANCES = Path(__file__).parents[3] / "shared" / "data" / "rl" / "flexfusion_instances.csv"
SMALL = pytest.mark.skipif(not INSTANCES.exists(), reason=f"no published instances at {INSTANCES}")


def pipeline(
    machines: tuple[int, ...], jobs: int, forward: float, backward: float, resident_bytes: float = 1.0
) -> Pipeline:
    stages = len(machines)
    return Pipeline(machines, jobs, (forward,) * stages, (backward,) * stages, resident_bytes)


@st.composite
def tiny_problems(draw: st.DrawFn) -> FusedProblem:
    times = st.sampled_from([1.0, 2.0, 2.5, 4.0])
    large = pipeline((0, 1), draw(st.integers(1, 2)), draw(times), draw(times))
    small = [pipeline((1, 0), 1, draw(times), draw(times), 0.5)]
    if draw(st.booleans()):
        small = [pipeline((machine,), 1, draw(times), draw(times), 0.5) for machine in (0, 1)]
    capacity = draw(st.sampled_from([None, 1.0, 1.5, 2.0]))
    return FusedProblem((large, *small), None if capacity is None else (capacity, capacity))


@settings(max_examples=25, deadline=None)
@given(tiny_problems())
def test_the_solution_equals_trying_every_order(problem: FusedProblem) -> None:
    result = solve_fused(problem, time_limit_s=600.0, restarts=1)
    assert result.status is Status.OPTIMAL
    assert result.objective == pytest.approx(least_makespan(problem.pipelines, problem.capacity), rel=1e-9)
    assert result.bound is not None
    assert result.bound <= least_makespan(problem.pipelines, problem.capacity) * (1 + 1e-9)


@settings(max_examples=25, deadline=None)
@given(tiny_problems())
def test_no_order_is_below_the_bound(problem: FusedProblem) -> None:
    assert lower_bound(problem) <= least_makespan(problem.pipelines, problem.capacity) + 1e-9


def test_threads_reach_the_exact_method(monkeypatch: pytest.MonkeyPatch) -> None:
    from planner.solvers.backends import cpsat_flow_shop

    seen = []

    def listen(shop: FlowShop, hint: ShopSchedule, bound: float, **limits: float) -> cpsat_flow_shop.Improved:
        seen.append(limits["threads"])
        return cpsat_flow_shop.Improved(hint.order, bound, "time_limit", "none")

    monkeypatch.setattr(cpsat_flow_shop, "improve", listen)
    shop = FusedProblem((pipeline((0, 1), 2, 1.0, 2.0), pipeline((1, 0), 2, 1.0, 2.0)))
    solve_fused(shop, threads=3, restarts=0)
    assert seen == [3]


def published(number: int, *, capped: bool) -> tuple[FusedProblem, dict[str, str]]:
    row = list(csv.DictReader(INSTANCES.read_text(encoding="utf-8").splitlines()))[number]
    stages, half = int(row["pp0"]), int(row["pp1"])
    forward, short = float(row["fwd0"]), float(row["fwd1"])
    pipes = [pipeline(tuple(range(stages)), int(row["mb0"]), forward, 2 * forward, float(row["mem0"]))]
    for first in range(0, stages, half):
        way = tuple(range(first + half - 1, first - 1, -1))
        pipes.append(pipeline(way, int(row["mb1"]), short, 2 * short, float(row["mem1"])))
    room = (float(row["SA_peak_mem"]) + 1e-4,) * stages if capped else None
    return FusedProblem(tuple(pipes), room), row


@SMALL
@pytest.mark.parametrize("number", range(12))
def test_the_bound_is_the_published_one(number: int) -> None:
    problem, row = published(number, capped=False)
    assert lower_bound(problem) == float(row["lower_bound"])


@SMALL
@pytest.mark.parametrize("number", [1, 2, 4, 5])
def test_published_results_are_met(number: int) -> None:
    problem, row = published(number, capped=False)
    result = solve_fused(problem)
    assert result.status is Status.OPTIMAL
    assert result.objective == float(row["lower_bound"])


@SMALL
@pytest.mark.parametrize("number", [2, 4, 5])
def test_published_results_are_met_within_the_published_memory(number: int) -> None:
    problem, row = published(number, capped=True)
    result = solve_fused(problem)
    assert result.solution is not None
    assert result.objective == float(row["published_SA"])
    assert result.solution.peak <= float(row["SA_peak_mem"]) + 1e-4
    assert read_off(problem.shop, result.solution.order) == result.solution


def test_pipelines_that_fit_nowhere_have_no_schedule() -> None:
    problem = FusedProblem((pipeline((0, 1), 2, 1.0, 2.0, resident_bytes=3.0),), (4.0, 2.0))
    assert solve_fused(problem).status is Status.INFEASIBLE


def test_one_pipeline_alone_is_one_forward_one_backward() -> None:
    schedule = one_after_the_other(FusedProblem((pipeline((0, 1, 2, 3), 8, 1.0, 2.0),)))
    assert schedule is not None
    assert schedule.makespan == (8 + 4 - 1) * 3.0
    assert schedule.peak == 4.0


def test_the_same_seed_gives_the_same_schedule() -> None:
    problem = FusedProblem((pipeline((0, 1, 2, 3), 8, 5.0, 10.0), pipeline((3, 2, 1, 0), 8, 2.0, 4.0)))
    assert solve_fused(problem, seed=3).solution == solve_fused(problem, seed=3).solution


def test_an_order_that_breaks_a_rule_is_refused() -> None:
    problem = FusedProblem((pipeline((0, 1), 1, 1.0, 2.0),), (1.0, 1.0))
    with pytest.raises(PlannerError, match="wait for each other"):
        read_off(problem.shop, ((3, 0), (1, 2)))
    crowded = FusedProblem((pipeline((0, 1), 2, 1.0, 2.0),), (1.0, 2.0))
    with pytest.raises(PlannerError, match="machine 0 holds 2 of 1"):
        read_off(crowded.shop, ((0, 0, 3, 3), (1, 2, 1, 2)))


def test_pipelines_without_sense_are_refused() -> None:
    with pytest.raises(PlannerError, match="each once"):
        pipeline((0, 0), 1, 1.0, 2.0)
    with pytest.raises(PlannerError, match="positive"):
        pipeline((0, 1), 0, 1.0, 2.0)
    with pytest.raises(PlannerError, match="1 capacities for 2"):
        FusedProblem((pipeline((0, 1), 1, 1.0, 2.0),), (1.0,))


def test_the_first_three_types_of_a_critical_block_move_to_its_ends() -> None:
    from planner.solvers.compiled.fused_pipelines import _add_moves

    sequence = np.array([7, 7, 1, 1, 2, 3, 4, 7, 5])
    moves = np.zeros((16, 3), np.int64)
    count = _add_moves(sequence, 0, 8, 6, moves, 0)
    front = [(6, 2, 0), (6, 4, 0), (6, 5, 0)]  # the first 1, 2 and 3, in front of the 7s
    end = [(6, 7, 8), (6, 6, 8), (6, 5, 8)]  # the last 7, 4 and 3, behind the 5
    assert list(map(tuple, moves[:6].tolist())) == front + end
    assert count in (6, 7)  # one swap of neighbours drawn at random, of different types
