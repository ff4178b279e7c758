"""Roles on whole nodes: the search against every plan of the space that lies so, and the rules."""

import math
from dataclasses import replace
from typing import Any

import pytest
from agentic_oracle import optimum
from agentic_problems import random_agents
from rl_oracle import objective, plans
from rl_problems import Feature, random_problem

from planner.documents.read import given_document
from planner.interchange.rl_agentic import read_agentic
from planner.interchange.rl_plan import plan_document, read_plan
from planner.interchange.rl_problem import read_problem
from planner.rl.agentic import evaluate_agentic
from planner.rl.evaluate import evaluate
from planner.rl.plan import GenerationGroup, RlMode, RlPlan, TrainingChoice
from planner.rl.problem import RlProblem
from planner.rl.search.agentic_search import derive_agentic_bound, solve_agentic
from planner.rl.search.search import solve
from planner.rl.search.verify import derive_bound

NODE = 2
Json = dict[str, Any]


def drawn(seed: int, feature: Feature) -> tuple[Json, RlProblem]:
    """A problem, and the same on nodes of two GPUs."""
    problem = random_problem(seed, feature)
    given = read_problem(given_document(problem, "problem"))
    return problem, replace(given, pools=tuple(replace(pool, whole_node_gpus=NODE) for pool in given.pools))


def lies_whole(plan: Json) -> bool:
    """By the GPUs of every role: all of its nodes, or with all others of its pool on one."""
    parts = [(group["pool"], group["tp"], group["replicas"], group["tp"]) for group in plan["gen"]]
    train = plan["train"]
    if train is not None:
        parts.append((train["pool"], train["tp"] * train["pp"], train["dp"], train["tp"]))
    for pool in {part[0] for part in parts}:
        sizes = [size * count for name, size, count, _ in parts if name == pool]
        trained = sum(size for name, size, *_ in parts[len(plan["gen"]) :] if name == pool)
        generated = sum(sizes) - trained
        taken = sum(sizes) if plan["placement"] == "disaggregated" else max(generated, trained)
        whole = all(size % NODE == 0 for size in sizes)
        straddling = any(max(NODE, close) % min(NODE, close) for name, _, _, close in parts if name == pool)
        if taken > NODE and (not whole or straddling):
            return False
    return True


@pytest.mark.parametrize("feature", ["sync", "async", "cost", "moe", "rollout", "drift"])
@pytest.mark.parametrize("seed", range(3))
def test_the_search_finds_the_best_plan_on_whole_nodes(seed: int, feature: Feature) -> None:
    problem, given = drawn(seed, feature)
    best = min((objective(problem, plan) for plan in plans(problem) if lies_whole(plan)), default=math.inf)
    solution = solve(given)
    if math.isinf(best):
        assert solution.plan is None
        return
    assert solution.objective == pytest.approx(best, rel=1e-9)
    assert solution.plan is not None
    assert lies_whole(plan_document(solution.plan))
    assert derive_bound(given, best, 1e-9).least >= best * (1 - 1e-9)


@pytest.mark.parametrize("seed", range(2))
def test_agents_lie_on_whole_nodes_too(seed: int) -> None:
    problem = random_agents(seed, samples=4, dispatch=("fifo", "predicted_longest_first"))
    free = read_agentic(given_document(problem, "problem"))
    pools = tuple(replace(pool, whole_node_gpus=NODE) for pool in free.curves.pools)
    given = replace(free, curves=replace(free.curves, pools=pools))
    best, solution = optimum(problem, lies_whole), solve_agentic(given)
    if math.isinf(best):
        assert solution.plan is None
        return
    assert solution.objective == pytest.approx(best, rel=1e-9)
    assert solution.plan is not None
    assert evaluate_agentic(given, solution.plan).feasible
    assert derive_agentic_bound(given, best, 1e-9).least >= best * (1 - 1e-9)


@pytest.mark.parametrize(("training", "told"), [(4, False), (8, True), (12, True), (16, True)])
def test_half_a_node_each_is_whole_where_the_plan_has_no_other(training: int, told: bool) -> None:
    _, given = drawn(0, "sync")
    pool = replace(given.pools[0], gpus=32, whole_node_gpus=8)
    group = next(option for option in given.generation if option.pool == pool.name)
    trained = next(option for option in given.training if option.pool == pool.name and option.gpus == 1)
    plan = RlPlan(
        RlMode("disaggregated", "sync"),
        (GenerationGroup(group, 4 // group.gpus),),
        TrainingChoice(trained, training),
    )
    broken = evaluate(replace(given, pools=(pool,)), plan).broken
    assert any("fill no nodes of 8" in rule for rule in broken) == told


def test_plans_on_parts_of_nodes_break_a_rule_that_names_the_nodes() -> None:
    problem, given = drawn(0, "sync")
    for plan in plans(problem):
        broken = [
            rule for rule in evaluate(given, read_plan(given_document(plan, "plan"), given)).broken if "nodes" in rule
        ]
        assert bool(broken) != lies_whole(plan)
