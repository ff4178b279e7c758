"""Plans over training time."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rl_problems import random_problem

from planner.documents.read import given_document
from planner.errors import Infeasible
from planner.interchange.rl_problem import read_problem
from planner.rl.evaluate import evaluate
from planner.rl.problem import RlProblem
from planner.rl.search.horizon import ChangeCosts, HorizonProblem, Period, evaluate_horizon, plan_horizon
from planner.rl.search.search import solve
from planner.rl.trajectories import SampleBatch
from planner.solvers.result import Status


def _drifting(objective: str = "iteration_time") -> tuple[RlProblem, tuple[Period, ...]]:
    data: dict[str, Any] = random_problem(4, "async")
    problem = read_problem(given_document({**data, "objective": objective}, "problem"))
    draw = random.Random(9)
    size = problem.batches[0].size
    periods = []
    for scale in (0.4, 0.7, 1.0, 1.6, 2.4, 3.0):
        output = np.array([min(60, 1 + int(draw.lognormvariate(1.8, 0.8) * scale)) for _ in range(size)])
        periods.append(Period((SampleBatch(problem.batches[0].prompt_tokens_N, output),), 10))
    return problem, tuple(periods)


def test_free_changes_give_the_optimum_of_every_period() -> None:
    problem, periods = _drifting()
    optimum = plan_horizon(HorizonProblem(problem, periods, ChangeCosts(0.0, 0.0)))
    alone = [solve(replace(problem, batches=period.batches)).objective for period in periods]
    assert optimum.status is Status.OPTIMAL
    assert optimum.total == pytest.approx(10 * sum(objective or 0.0 for objective in alone))
    assert optimum.total == pytest.approx(optimum.greedy_total)
    assert optimum.total <= optimum.fixed_total


def test_dear_changes_give_one_plan_for_all_periods() -> None:
    problem, periods = _drifting()
    optimum = plan_horizon(HorizonProblem(problem, periods, ChangeCosts(1e6, 1e6)))
    assert optimum.changes == 0
    assert optimum.total == pytest.approx(optimum.fixed_total)
    assert optimum.plans == (optimum.fixed_plan,) * len(periods)


def test_a_running_plan_is_kept_for_nothing_and_left_for_the_price_of_what_changes() -> None:
    problem, periods = _drifting()
    free = plan_horizon(HorizonProblem(problem, periods, ChangeCosts(1e6, 1e6)))
    assert free.fixed_plan is not None
    kept = plan_horizon(HorizonProblem(problem, periods, ChangeCosts(1e6, 1e6), running=free.fixed_plan))
    assert kept.changes == 0
    assert kept.total == pytest.approx(free.total)
    training = free.fixed_plan.training
    assert training is not None
    elsewhere = replace(free.fixed_plan, training=replace(training, dp=99))  # as no state has it
    left = plan_horizon(HorizonProblem(problem, periods[:1], ChangeCosts(0.5, 3.0), running=elsewhere))
    alone = plan_horizon(HorizonProblem(problem, periods[:1], ChangeCosts(0.5, 3.0)))
    assert left.total - alone.total >= 3.0 - 1e-9
    assert left.total == pytest.approx(
        evaluate_horizon(
            HorizonProblem(problem, periods[:1], ChangeCosts(0.5, 3.0), running=elsewhere), left.plans
        ).total
    )


@pytest.mark.parametrize("objective", ["iteration_time", "cost_per_iter"])
def test_the_horizon_is_never_behind_one_plan_or_the_best_of_every_period(objective: str) -> None:
    problem, periods = _drifting(objective)
    for seconds in (0.1, 1.0, 4.0):
        optimum = plan_horizon(HorizonProblem(problem, periods, ChangeCosts(seconds, 2 * seconds, 0.5 * seconds)))
        assert optimum.total <= min(optimum.fixed_total, optimum.greedy_total) + 1e-9
        iterations = sum(
            10 * evaluate(replace(problem, batches=period.batches), plan).objective
            for period, plan in zip(periods, optimum.plans, strict=True)
        )
        assert optimum.total >= iterations - 1e-9
        assert (optimum.changes > 0) == (optimum.total > iterations + 1e-9)


def test_a_period_without_a_plan_is_named_with_its_shortest_iteration() -> None:
    problem, periods = _drifting()
    shortest = solve(replace(problem, batches=periods[0].batches)).objective
    with pytest.raises(Infeasible) as caught:
        plan_horizon(HorizonProblem(replace(problem, max_iteration_s=1e-3), periods, ChangeCosts(1.0, 1.0)))
    assert "in period 0" in caught.value.conflict[0]["limit"]
    assert caught.value.conflict[0]["nearest"] == f"max_iteration_s {shortest:.6g}"


@pytest.mark.parametrize("objective", ["iteration_time", "cost_per_iter"])
def test_the_plans_are_worth_the_total_that_was_proven(objective: str) -> None:
    problem, periods = _drifting(objective)
    horizon = HorizonProblem(problem, periods, ChangeCosts(0.02, 0.03, 0.01))
    optimum = plan_horizon(horizon)
    evaluation = evaluate_horizon(horizon, optimum.plans)
    assert evaluation.total == pytest.approx(optimum.total)
    assert not evaluation.broken
    assert sum(map(bool, evaluation.changed)) == optimum.changes
    assert (evaluation.change_total > 0) == (objective == "iteration_time")
