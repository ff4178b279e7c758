"""Tensor-parallel groups inside scale-up domains: the search against every plan whose groups straddle none."""

import math
from dataclasses import replace
from typing import Any

import pytest
from agentic_problems import random_agents
from rl_oracle import objective, plans
from rl_problems import Feature, random_problem

from planner.documents.read import given_document
from planner.interchange.rl_agentic import read_agentic
from planner.interchange.rl_plan import plan_document, read_plan
from planner.interchange.rl_problem import read_problem
from planner.rl.agentic import evaluate_agentic
from planner.rl.curves import CurvePool
from planner.rl.evaluate import evaluate
from planner.rl.layout.domains import may_straddle
from planner.rl.plan import RlPlan
from planner.rl.problem import RlProblem
from planner.rl.search.agentic_search import solve_agentic
from planner.rl.search.search import solve
from planner.rl.search.verify import derive_bound

Json = dict[str, Any]


def drawn(seed: int, feature: Feature, domain: int) -> tuple[Json, RlProblem]:
    """A problem, and the same on domains of so many GPUs, of which the last of a pool may have fewer."""
    problem = random_problem(seed, feature)
    given = read_problem(given_document(problem, "problem"))
    pools = (replace(pool, domains=domains_of(pool, domain), domain_gpus=domain) for pool in given.pools)
    return problem, replace(given, pools=tuple(pools))


def domains_of(pool: CurvePool, size: int) -> tuple[int, ...]:
    return tuple(min(size, pool.gpus - first) for first in range(0, pool.gpus, size))


def straddles(plan: Json, domain: int, *, beside: bool = False) -> bool:
    """Device by device: in each pool the widest groups come first, training that takes turns on the first of all.

    `beside`: models of twice the width lie on trainings of two stages.
    """
    train = plan["train"]
    turns = plan["placement"] != "disaggregated" and train["pool"] in {group["pool"] for group in plan["gen"]}
    roles: list[tuple[tuple[int, ...], str, int]] = [
        ((group["tp"],), group["pool"], group["tp"] * group["replicas"]) for group in plan["gen"]
    ]
    own: list[tuple[tuple[int, ...], str, int]] = []
    if train is not None:
        widths: tuple[int, ...] = (train["tp"], 2 * train["tp"]) if beside and train["pp"] == 2 else (train["tp"],)
        own = [(widths, train["pool"], train["tp"] * train["pp"] * train["dp"])]
    rows = [roles, own] if turns else [roles + own]
    for row in rows:
        free: dict[str, int] = {}
        for widths, pool, gpus in sorted(row, key=lambda role: -max(role[0])):
            devices = range(free.get(pool, 0), free.get(pool, 0) + gpus)
            free[pool] = devices.stop
            groups = [devices[start : start + width] for width in widths for start in range(0, gpus, width)]
            if any(len({device // domain for device in group}) * domain > max(domain, len(group)) for group in groups):
                return True
    return False


@pytest.mark.parametrize("feature", ["sync", "async", "cost", "moe", "rollout", "drift"])
@pytest.mark.parametrize("domain", [2, 3, 5])
def test_the_search_finds_the_best_plan_whose_groups_straddle_nothing(domain: int, feature: Feature) -> None:
    problem, given = drawn(domain, feature, domain)
    best = min((objective(problem, plan) for plan in plans(problem) if not straddles(plan, domain)), default=math.inf)
    solution = solve(given)
    if math.isinf(best):
        assert solution.plan is None
        return
    assert solution.objective == pytest.approx(best, rel=1e-9)
    assert solution.plan is not None
    assert not straddles(plan_document(solution.plan), domain)
    assert derive_bound(given, best, 1e-9).least >= best * (1 - 1e-9)


@pytest.mark.parametrize(("seed", "feature"), [(2, "sync"), (1, "async"), (1, "drift"), (2, "drift")])
def test_models_beside_the_actor_straddle_nothing_either(seed: int, feature: Feature) -> None:
    domain = 3
    problem, given = drawn(seed, feature, domain)
    wider = tuple(replace(option, beside_tp=2 * option.tp if option.pp == 2 else 1) for option in given.training)
    known = replace(given, training=wider)
    lying = [plan for plan in plans(problem) if not straddles(plan, domain, beside=True)]
    best = min((objective(problem, plan) for plan in lying), default=math.inf)
    assert best > (solve(given).objective or 0.0)
    solution = solve(known)
    if math.isinf(best):
        assert solution.plan is None
        return
    assert solution.objective == pytest.approx(best, rel=1e-9)
    assert derive_bound(known, best, 1e-9).least >= best * (1 - 1e-9)


def _read(plan: Json, given: RlProblem) -> RlPlan:
    return read_plan(given_document(plan, "plan"), given)


@pytest.mark.parametrize("domain", [3, 5])
def test_plans_that_straddle_domains_break_a_rule_that_names_the_gpus(domain: int) -> None:
    problem, given = drawn(1, "async", domain)
    pools, broken = {pool.name: pool.gpus for pool in given.pools}, 0
    for plan in plans(problem):
        evaluation = evaluate(given, _read(plan, given))
        if any(count > pools[name] for name, count in evaluation.gpus_of_pool.items()):
            continue
        told = any("straddle" in rule for rule in evaluation.broken)
        broken += told
        assert told == straddles(plan, domain)
    assert broken


@pytest.mark.parametrize(
    ("domains", "widths", "last", "told"),
    [
        ((8, 8), {1, 2, 4, 8, 16}, (), False),
        ((8, 8), {1, 3}, (), True),
        ((3, 3), {1, 2}, (), True),
        ((6, 6), {2, 3}, (), True),
        ((6, 6), {1, 3, 6}, (), False),
        ((72, 72), {8, 16}, (), True),
        ((64, 72), {8, 64}, (), True),
        ((8, 8), {2, 4}, (2,), False),
        ((8, 8), {1, 4}, (2,), True),
        ((), {3, 7}, (2,), False),
    ],
)
def test_only_widths_that_divide_each_other_and_domains_never_straddle(
    domains: tuple[int, ...], widths: set[int], last: tuple[int, ...], *, told: bool
) -> None:
    assert (
        may_straddle(CurvePool("a", sum(domains), domains=domains, domain_gpus=max(domains, default=0)), widths, last)
        == told
    )


@pytest.mark.parametrize("seed", range(5))
def test_agents_lie_by_the_same_rule(seed: int) -> None:
    free = read_agentic(given_document(random_agents(seed, samples=2), "problem"))
    pools = tuple(replace(pool, domains=domains_of(pool, 3), domain_gpus=3) for pool in free.curves.pools)
    given = replace(free, curves=replace(free.curves, pools=pools))
    solution, unruled = solve_agentic(given), solve_agentic(free)
    assert unruled.plan is not None
    if solution.plan is None:
        assert not evaluate_agentic(given, unruled.plan).feasible
        return
    assert solution.evaluation == evaluate_agentic(given, solution.plan)
    assert evaluate_agentic(given, solution.plan).feasible
    assert solution.evaluation.objective >= (unruled.objective or 0.0)
    if evaluate_agentic(given, unruled.plan).feasible:
        assert solution.objective == unruled.objective
