"""The exact search against brute force that simulates every plan token by token."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rl_oracle import objective, optimum, plans, rank
from rl_problems import FEATURES, Feature, random_problem

from planner.arrays import Floats
from planner.documents.read import given_document, load_document
from planner.interchange.rl_plan import plan_document, read_plan
from planner.interchange.rl_problem import read_problem
from planner.rl.evaluate import evaluate
from planner.rl.search.best_first import ConfigurationSearch
from planner.rl.search.search import solve
from planner.rl.search.verify import derive_bound
from planner.rl.training import Rollout
from planner.solvers.best_first import search_all
from planner.solvers.result import Status

SHARED = Path(__file__).parents[3] / "shared" / "data" / "rl"


def _read(problem: dict[str, Any]) -> Any:  # noqa: ANN401
    return read_problem(given_document(problem, "problem"))


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("seed", range(6))
def test_the_search_finds_what_brute_force_finds(seed: int, feature: Feature) -> None:
    problem = random_problem(seed, feature)
    priced = [(objective(problem, plan), plan) for plan in plans(problem)]
    best = min(value for value, _ in priced)
    if math.isinf(best):
        pytest.skip("no plan fits this draw")
    solution = solve(given := _read(problem))
    assert solution.status is Status.OPTIMAL
    assert solution.objective == pytest.approx(best, rel=1e-9)
    assert solution.plan is not None
    chosen = plan_document(solution.plan)
    assert objective(problem, chosen) == pytest.approx(best, rel=1e-9)
    ties = [plan for value, plan in priced if value <= best * (1 + 1e-9)]
    modes = [(mode.placement, mode.sync) for mode in given.modes]
    ranks = [(modes.index((plan["placement"], plan["sync"])), *rank(problem, plan)) for plan in (chosen, *ties)]
    assert ranks[0] == min(ranks)


@pytest.mark.parametrize("feature", FEATURES)
def test_the_evaluator_prices_every_plan_as_the_format_says(feature: Feature) -> None:
    problem = random_problem(11, feature)
    given = _read(problem)
    everything = list(plans(problem))
    for plan in everything[:: max(1, len(everything) // 120)]:
        expected = objective(problem, plan)
        evaluation = evaluate(given, read_plan(given_document(plan, "plan"), given))
        assert evaluation.feasible == math.isfinite(expected)
        if evaluation.feasible:
            assert evaluation.objective == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("feature", FEATURES)
def test_seen_and_pruned_plans_add_up_to_the_space(feature: Feature) -> None:
    problem = random_problem(3, feature)
    feasible = sum(math.isfinite(objective(problem, plan)) for plan in plans(problem))
    if not feasible:
        pytest.skip("no plan fits this draw")
    solution = solve(_read(problem))
    assert solution.seen + solution.pruned == feasible


def test_a_cap_on_the_iteration_is_kept_or_the_nearest_named() -> None:
    problem = random_problem(2, "cost")
    free = solve(_read(problem))
    quickest = solve(_read({**problem, "objective": "iteration_time"}))
    assert free.evaluation is not None
    assert quickest.objective is not None
    cap = 0.5 * (free.evaluation.iteration_s + quickest.objective)
    capped = {**problem, "max_iteration_s": cap}
    assert solve(_read(capped)).objective == pytest.approx(optimum(capped), rel=1e-9)
    refused = solve(_read({**problem, "max_iteration_s": quickest.objective * 0.999}))
    assert refused.status is Status.INFEASIBLE
    assert refused.nearest_iteration_s == pytest.approx(quickest.objective)


def test_a_gap_stops_early_and_a_time_limit_keeps_a_true_bound() -> None:
    problem = random_problem(5, "async")
    best = optimum(problem)
    loose = solve(_read(problem), gap=0.3)
    assert loose.bound is not None
    assert loose.objective is not None
    assert loose.bound <= best * (1 + 1e-9)
    assert loose.objective <= best / 0.7
    stopped = solve(_read(problem), time_limit_s=0.0)
    assert stopped.stop_reason == "time_limit"
    assert stopped.status in (Status.UNKNOWN, Status.FEASIBLE)


def test_solving_twice_gives_the_same_plan() -> None:
    given = _read(random_problem(4, "rollout"))
    assert solve(given) == solve(given)


@pytest.mark.skipif(not SHARED.is_dir(), reason="../shared/data/rl is absent")
def test_the_published_problems_are_solved_to_their_optimum() -> None:
    known = json.loads((SHARED / "optimum.json").read_text())
    ratios = {}
    for name, entry in known.items():
        solution = solve(read_problem(load_document(SHARED / f"{name}.json")))
        assert solution.status is Status.OPTIMAL
        assert solution.objective is not None
        ratios[name] = solution.objective / entry["objective"]
    assert np.allclose(list(ratios.values()), 1.0, rtol=1e-9), ratios


def test_what_a_file_may_leave_out_changes_nothing() -> None:
    problem = random_problem(1, "rollout")
    shorter = {key: value for key, value in problem.items() if key != "allowed"}
    shorter["cost"] = {"gen": problem["cost"]["gen"]}
    shorter["workload"] = {key: value for key, value in problem["workload"].items() if key != "minibatches"}
    assert solve(_read(shorter)) == solve(_read(problem))
    full = random_problem(2, "cost")
    (pool,) = (pool for pool in full["cost"]["train"] if pool != "a")
    alone = {**full, "cost": {**full["cost"], "train": {"a": full["cost"]["train"]["a"]}}}
    empty = {**full, "cost": {**full["cost"], "train": {**full["cost"]["train"], pool: {"curves": []}}}}
    empty["cost"]["gen"] = {**full["cost"]["gen"]}
    assert solve(_read(empty)) == solve(_read(alone))
    listed = {**full, "workload": {**full["workload"]}}
    listed["workload"]["prompt_len"] = [full["workload"]["prompt_len"]] * full["workload"]["samples"]
    assert solve(_read(listed)).objective == solve(_read(full)).objective


@pytest.mark.parametrize("seed", range(6))
def test_the_bound_is_derived_again_and_a_better_one_is_refuted_by_the_plan(seed: int) -> None:
    problem = read_problem(given_document(random_problem(seed, "async"), "problem"))
    solution = solve(problem)
    assert solution.objective is not None
    assert solution.bound is not None
    assert derive_bound(problem, solution.bound, 1e-9).least == pytest.approx(solution.objective)
    assert derive_bound(problem, 1.02 * solution.bound, 1e-9).least == pytest.approx(solution.objective)
    whole, loose = (derive_bound(problem, share * solution.bound, 1e-9) for share in (1.0, 0.5))
    assert loose.simulated <= whole.simulated
    assert loose.closed + loose.simulated == whole.closed + whole.simulated


def test_of_equally_good_plans_modes_that_run_ahead_least_then_short_rollouts_then_few_gpus_are_taken() -> None:
    class Rounded:
        """Prices of four configurations, of three modes and two trainings; rounding alone sets most of them apart."""

        total = 24
        quick_C: Floats = np.array([4.9, 5.0, 5.0, 5.0 * (1 + 1e-15)])
        generation_C: Floats = np.array([2.0, 3.0, 1.0, 1.0])

        def bound_MT(self, config: int) -> Floats:
            return np.full((3, 2), self.quick_C[config])

        def exact_MT(self, config: int, rollout: Rollout) -> Floats:
            least = 9.0 if config == 2 else 5.0
            return np.array([[9.0, 9.0], [least, least * (1 + 1e-15)], [9.0, least]])

    def rollout(config: int) -> Rollout:
        return Rollout(np.array([4.0, 3.0, 1.0, 3.0])[[config]], np.zeros((1, 1)), np.zeros((1, 1)))

    search = ConfigurationSearch(Rounded(), rollout)
    search_all([search], 0.0, math.inf)
    assert search.best_at == (0, 1, 0)  # the first that was simulated
    search.settle(lambda config, mode: np.array([[8, 8], [8, 8], [8, 8], [8, 7]])[config])
    assert search.best_at == (3, 1, 1)
    assert search.value == 5.0
    assert search.seen == 24

    short = ConfigurationSearch(Rounded(), rollout)
    short.close(2)  # what a search that may leave a gap ends with
    short.settle(lambda config, mode: np.array([8, 8]))
    assert (short.value, short.best_at[0]) == (5.0, 3)
