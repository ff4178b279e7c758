"""The search for agentic plans against brute force over every plan and every assignment."""

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from agentic_oracle import best_ends, long_run, objective, optimum
from agentic_problems import Json, random_agents

from planner.documents.read import given_document
from planner.errors import PlannerError
from planner.interchange.rl_agentic import agentic_plan_document, is_agentic, read_agentic, read_agentic_plan
from planner.rl.agentic import evaluate_agentic
from planner.rl.search.agentic_search import solve_agentic
from planner.rl.training import ahead_s
from planner.solvers.result import Status


def _read(problem: Json) -> Any:  # noqa: ANN401
    return read_agentic(given_document(problem, "problem"))


@pytest.mark.parametrize("seed", range(6))
def test_the_search_finds_what_brute_force_over_assignments_finds(seed: int) -> None:
    problem = random_agents(seed, samples=2 if seed == 1 else 4)
    best = optimum(problem)
    solution = solve_agentic(_read(problem))
    assert solution.status is Status.OPTIMAL
    assert solution.unproven == 0
    assert solution.objective == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("seed", range(6, 10))
def test_the_search_finds_what_brute_force_over_policies_finds(seed: int) -> None:
    problem = random_agents(seed, samples=6, dispatch=("fifo", "predicted_longest_first"))
    solution = solve_agentic(_read(problem))
    assert solution.status is Status.OPTIMAL
    assert solution.objective == pytest.approx(optimum(problem), rel=1e-9)


@pytest.mark.parametrize("seed", [0, 1, 4])
def test_a_plan_written_and_read_is_worth_what_brute_force_says(seed: int) -> None:
    problem = random_agents(seed)
    given = _read(problem)
    solution = solve_agentic(given)
    assert solution.plan is not None
    document = json.loads(json.dumps(agentic_plan_document(solution.plan)))
    evaluation = evaluate_agentic(given, read_agentic_plan(given_document(document, "plan"), given))
    assert not evaluation.broken
    assert evaluation.objective == solution.objective
    ends = best_ends(problem, document)
    assert objective(problem, document, ends) == pytest.approx(evaluation.objective, rel=1e-9)


@pytest.mark.parametrize("dispatch", ["fifo", "assigned"])
def test_a_worker_takes_a_trajectory_that_fills_its_kv_and_none_that_is_longer(dispatch: str) -> None:
    problem = random_agents(2, samples=2, dispatch=(dispatch,))
    largest = max(int(batch.final_context_N.max()) for batch in _read(problem).batches)
    curves = [curve for pool in problem["cost"]["gen"].values() for curve in pool.values()]
    for curve in curves:
        curve["kv_tokens"] = largest
    assert solve_agentic(_read(problem)).status is Status.OPTIMAL
    for curve in curves:
        curve["kv_tokens"] = largest - 1
    with pytest.raises(PlannerError, match="exceeds the KV capacity of every replica"):
        _read(problem)


def test_a_plan_that_breaks_a_rule_takes_forever() -> None:
    given = _read(random_agents(2, samples=2))
    plan = solve_agentic(given).plan
    assert plan is not None
    evaluation = evaluate_agentic(given, replace(plan, training=replace(plan.training, dp=99)))
    assert any("the plan takes" in rule for rule in evaluation.broken)
    assert any("dp 99 for 1 samples a minibatch" in rule for rule in evaluation.broken)
    assert math.isinf(evaluation.objective)
    assert all(map(math.isinf, evaluation.generation_s_of_batch))
    assert evaluation.moved == 0


def test_long_runs_with_staleness_settle_at_the_largest_cycle_mean() -> None:
    draw = np.random.default_rng(5)
    for _ in range(60):
        batches, staleness = int(draw.integers(1, 5)), int(draw.integers(0, 4))
        generation, training = draw.exponential(1.0, batches), draw.exponential(1.0, batches)
        mean_s = ahead_s(generation, training[None] + 0.2, np.zeros(1), staleness, np.zeros(1))[0]
        assert mean_s == pytest.approx(long_run(list(generation), list(training), 0.2, staleness), rel=1e-9)


def test_more_staleness_never_slows_the_long_run() -> None:
    draw = np.random.default_rng(6)
    generation, training = draw.exponential(1.0, 6), draw.exponential(1.0, (1, 6))
    means = [float(ahead_s(generation, training, np.full(1, 0.1), steps, np.zeros(1))[0]) for steps in range(5)]
    assert np.all(np.diff(means) <= 1e-12)
    assert means[-1] >= max(generation.mean(), training.mean()) - 1e-12


def test_large_problems_get_a_plan_with_an_honest_gap() -> None:
    problem = random_agents(2, samples=40, dispatch=("assigned",))
    solution = solve_agentic(_read(problem))
    assert solution.unproven > 0
    assert solution.gap is not None
    assert 0 < solution.gap < 0.6
    assert solution.status is Status.FEASIBLE


def test_plans_that_break_rules_are_told_which() -> None:
    given = _read(random_agents(0))
    plan = solve_agentic(given).plan
    assert plan is not None
    crowded = replace(plan, groups=(replace(plan.groups[0], replicas=9),), dispatch="fifo", assignment=())
    assert any("the plan takes" in rule for rule in evaluate_agentic(given, crowded).broken)
    astray = replace(plan, dispatch="assigned", assignment=((7, 7, 7, 7), (0, 0, 0, 0)))
    assert any("workers" in rule for rule in evaluate_agentic(given, astray).broken)
    assert math.isinf(evaluate_agentic(given, astray).objective)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("workload.minibatches", 3, "use 2 or 4 minibatches"),
        ("allowed.staleness", [-1], "at least 0"),
        ("allowed.move_threshold", [0.5], "at least 1"),
        ("workload.batches.0.trajectories.0.turns", [[0, 1.0, 2]], "is no turn"),
        ("workload.batches.0.trajectories.0.turns", [[900, 1.0, 2]], "exceeds the KV capacity"),
        ("allowed.dispatch", ["random"], "unknown value"),
    ],
)
def test_bad_input_is_refused_with_what_would_work(path: str, value: object, said: str) -> None:
    problem = random_agents(0)
    place: Any = problem
    *above, last = (int(part) if part.isdigit() else part for part in path.split("."))
    for part in above:
        place = place[part]
    place[last] = value
    with pytest.raises(PlannerError, match=said):
        solve_agentic(_read(problem))


def test_staleness_without_a_place_to_train_beside_generation_is_refused() -> None:
    problem = random_agents(0)
    problem["allowed"] |= {"placement": ["colocated"], "staleness": [1]}
    assert is_agentic(given_document(problem, "problem"))
    with pytest.raises(PlannerError, match="takes turns"):
        _read(problem)
