"""The search for agentic plans against brute force over every plan and every assignment."""

import json
import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from agentic_oracle import best_ends, long_run, objective, optimum

from planner.documents.read import given_document
from planner.errors import PlannerError
from planner.interchange.rl_agentic import agentic_plan_document, is_agentic, read_agentic, read_agentic_plan
from planner.rl.agentic import evaluate_agentic
from planner.rl.search.agentic_search import solve_agentic
from planner.rl.training import ahead_s
from planner.solvers.result import Status

Json = dict[str, Any]


def _problem(seed: int, *, samples: int = 4, dispatch: tuple[str, ...] = ("fifo", "assigned")) -> Json:
    draw = random.Random(seed)
    pools: list[Json] = [{"name": "a", "nodes": 1, "gpus_per_node": 3, "mem_gb": 80, "cost_per_gpu_hour": 2.85}]
    if seed % 2:
        pools.append({"name": "b", "nodes": 1, "gpus_per_node": 1, "mem_gb": 80, "cost_per_gpu_hour": 1.0})
    return {
        "stage": "agentic",
        "cluster": {"pools": pools},
        "cost": {
            "gen": {
                pool["name"]: {str(tp): _curve(draw, tp) for tp in (1, 2) if tp <= pool["gpus_per_node"]}
                for pool in pools
            },
            "train": {
                "a": {
                    "curves": [
                        {"tp": tp, "pp": 1, "train_tok_s": 60.0 * tp**0.9, "fwd_tok_s": 170.0 * tp**0.9}
                        for tp in (1, 2)
                    ],
                    "static_gb": 30.0,
                    "opt_gb": draw.choice([20.0, 60.0]),
                    "act_gb": 10.0,
                    "mem_util": 0.92,
                    "micro_tokens": 25,
                    "opt_fixed_s": 0.05,
                }
            },
            "wsync": {"base_s": 0.1, "model_gb": 4.0, "intra_gbs": 25.0, "cross_gbs": 5.0},
            "switch": {"base_s": 0.3, "offload_gbs": 40.0},
        },
        "workload": {
            "minibatches": 2,
            "batches": [
                {"trajectories": [_trajectory(draw) for _ in range(samples)]} for _ in range(1 + (seed % 3 == 0))
            ],
        },
        "rollout": {"keep_kv": bool(seed % 2), "move": {"base_s": 0.02, "token_s": 0.001}},
        "allowed": {
            "placement": ["colocated", "disaggregated", "hybrid"][: 2 + seed % 2],
            "staleness": [0, 1, 2],
            "dispatch": list(dispatch),
            "priority": ["fifo", "longest_first"],
            "move_threshold": [None, 1.1] if seed % 4 == 1 else [None],
        },
        "objective": "cost_per_iter" if seed % 5 == 4 else "iteration_time",
    }


def _curve(draw: random.Random, tp: int) -> Json:
    return {
        "alpha": 0.03 / tp**0.6,
        "beta": draw.uniform(0.001, 0.01) / tp,
        "gamma": draw.uniform(0.0, 3e-4) / tp,
        "prefill_tok_s": 300.0 * tp,
        "max_running": draw.randint(1, 3),
        "kv_tokens": 110 * tp,
    }


def _trajectory(draw: random.Random) -> Json:
    turns = [
        [1 + int(draw.lognormvariate(1.5, 0.7)), round(draw.expovariate(4.0), 4), draw.randint(0, 4)]
        for _ in range(draw.randint(1, 3))
    ]
    trajectory: Json = {"prompt": draw.randint(1, 6), "turns": turns}
    if draw.random() < 0.5:
        trajectory["predicted"] = [draw.uniform(1.0, 30.0) for _ in turns]
    return trajectory


def _read(problem: Json) -> Any:  # noqa: ANN401
    return read_agentic(given_document(problem, "problem"))


@pytest.mark.parametrize("seed", range(6))
def test_the_search_finds_what_brute_force_over_assignments_finds(seed: int) -> None:
    problem = _problem(seed, samples=2 if seed == 1 else 4)
    best = optimum(problem)
    solution = solve_agentic(_read(problem))
    assert solution.status is Status.OPTIMAL
    assert solution.unproven == 0
    assert solution.objective == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("seed", range(6, 10))
def test_the_search_finds_what_brute_force_over_policies_finds(seed: int) -> None:
    problem = _problem(seed, samples=6, dispatch=("fifo", "predicted_longest_first"))
    solution = solve_agentic(_read(problem))
    assert solution.status is Status.OPTIMAL
    assert solution.objective == pytest.approx(optimum(problem), rel=1e-9)


@pytest.mark.parametrize("seed", [0, 1, 4])
def test_a_plan_written_and_read_is_worth_what_brute_force_says(seed: int) -> None:
    problem = _problem(seed)
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
    problem = _problem(2, samples=2, dispatch=(dispatch,))
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
    given = _read(_problem(2, samples=2))
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
        mean_s = ahead_s(generation, training[None] + 0.2, np.zeros(1), staleness)[0]
        assert mean_s == pytest.approx(long_run(list(generation), list(training), 0.2, staleness), rel=1e-9)


def test_more_staleness_never_slows_the_long_run() -> None:
    draw = np.random.default_rng(6)
    generation, training = draw.exponential(1.0, 6), draw.exponential(1.0, (1, 6))
    means = [float(ahead_s(generation, training, np.full(1, 0.1), steps)[0]) for steps in range(5)]
    assert np.all(np.diff(means) <= 1e-12)
    assert means[-1] >= max(generation.mean(), training.mean()) - 1e-12


def test_large_problems_get_a_plan_with_an_honest_gap() -> None:
    problem = _problem(2, samples=40, dispatch=("assigned",))
    solution = solve_agentic(_read(problem))
    assert solution.unproven > 0
    assert solution.gap is not None
    assert 0 < solution.gap < 0.6
    assert solution.status is Status.FEASIBLE


def test_plans_that_break_rules_are_told_which() -> None:
    given = _read(_problem(0))
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
    problem = _problem(0)
    place: Any = problem
    *above, last = (int(part) if part.isdigit() else part for part in path.split("."))
    for part in above:
        place = place[part]
    place[last] = value
    with pytest.raises(PlannerError, match=said):
        solve_agentic(_read(problem))


def test_staleness_without_a_place_to_train_beside_generation_is_refused() -> None:
    problem = _problem(0)
    problem["allowed"] |= {"placement": ["colocated"], "staleness": [1]}
    assert is_agentic(given_document(problem, "problem"))
    with pytest.raises(PlannerError, match="takes turns"):
        _read(problem)
