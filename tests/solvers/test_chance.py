"""Options of stages under a chance of lateness against every combination, scenario by scenario; bad input."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.solvers.result import Status
from planner.solvers.workflow.chance import (
    ChanceProblem,
    StageOptions,
    cheapest_options,
    least_limit_s,
    share_held,
)


def random_problem(seed: int) -> ChanceProblem:
    draws = np.random.default_rng(seed)
    scenarios = int(draws.integers(1, 12))
    stages = []
    for stage in range(int(draws.integers(1, 5))):
        options = int(draws.integers(1, 4))
        parents = tuple(p for p in range(stage) if draws.random() < 0.5)
        stages.append(StageOptions(parents, draws.integers(1, 9, options) / 4.0, draws.random((options, scenarios))))
    return ChanceProblem(tuple(stages), float(draws.uniform(0.2, 2.0)), float(draws.choice([0.5, 0.9, 1.0])))


def path_s(problem: ChanceProblem, options: tuple[int, ...], scenario: int, last: int) -> float:
    """The longest way to the end of a stage, by its definition."""
    stage = problem.stages[last]
    before = max((path_s(problem, options, scenario, parent) for parent in stage.parents), default=0.0)
    return before + float(stage.time_s_OK[options[last], scenario])


def holds(problem: ChanceProblem, options: tuple[int, ...]) -> bool:
    stages, scenarios = range(len(problem.stages)), range(problem.stages[0].time_s_OK.shape[1])
    kept = sum(max(path_s(problem, options, k, s) for s in stages) <= problem.limit_s for k in scenarios)
    return kept >= problem.probability * len(scenarios)


@pytest.mark.parametrize("seed", range(100))
def test_no_options_that_hold_are_cheaper(seed: int) -> None:
    problem = random_problem(seed)
    every = itertools.product(*(range(len(stage.cost_O)) for stage in problem.stages))
    costs = [
        sum(float(s.cost_O[o]) for s, o in zip(problem.stages, x, strict=True)) for x in every if holds(problem, x)
    ]
    result = cheapest_options(problem)
    if not costs:
        assert result.status is Status.INFEASIBLE
        return
    assert result.status is Status.OPTIMAL
    assert result.solution is not None
    assert holds(problem, result.solution)
    assert result.objective == pytest.approx(min(costs), abs=1e-12)
    assert share_held(problem, result.solution) >= problem.probability - 1e-12


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.01, 1.0))
def test_a_longer_limit_never_costs_more(seed: int, more_s: float) -> None:
    tight = random_problem(seed)
    loose = ChanceProblem(tight.stages, tight.limit_s + more_s, tight.probability)
    before, after = cheapest_options(tight), cheapest_options(loose)
    if before.objective is not None:
        assert after.objective is not None
        assert after.objective <= before.objective


@pytest.mark.parametrize("seed", range(20))
def test_no_options_keep_a_limit_below_the_least(seed: int) -> None:
    problem = random_problem(seed)
    below = ChanceProblem(problem.stages, least_limit_s(problem) * (1.0 - 1e-9), problem.probability)
    assert cheapest_options(below).status is Status.INFEASIBLE


def test_a_node_limit_leaves_a_bound_that_the_optimum_is_not_below() -> None:
    problem = random_problem(3)
    stopped, result = cheapest_options(problem, node_limit=1), cheapest_options(problem)
    assert stopped.status is Status.UNKNOWN
    assert stopped.bound is not None
    assert result.objective is not None
    assert stopped.bound <= result.objective


def test_graphs_that_cannot_be_are_refused() -> None:
    stage = StageOptions((), np.ones(1), np.ones((1, 2)))
    for stages, what in (
        ((), "no stage"),
        ((stage, StageOptions((1,), np.ones(1), np.ones((1, 2)))), "waits for 1"),
        ((stage, StageOptions((), np.ones(1), np.ones((1, 3)))), "2, 3 scenarios"),
        ((StageOptions((), np.ones(0), np.ones((0, 2))),), "no option"),
        ((StageOptions((), np.ones(1), -np.ones((1, 2))),), "0 or more"),
        ((StageOptions((), np.ones(2), np.ones((1, 2))),), "2 costs"),
    ):
        with pytest.raises(PlannerError, match=what):
            ChanceProblem(stages, 1.0, 0.9)
    with pytest.raises(PlannerError, match=r"probability 1\.5"):
        ChanceProblem((stage,), 1.0, 1.5)
