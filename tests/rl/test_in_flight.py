"""Rollouts whose weights are updated in flight: simulated step by step, bounded, and searched as enumeration does."""

from dataclasses import replace

import numpy as np
import pytest
from rl_enumerated import least_of_one_group
from rl_problems import random_problem
from rl_window import windowed

from planner.documents.read import given_document
from planner.interchange.rl_problem import read_problem
from planner.rl.compiled.window import run_window
from planner.rl.curves import DecodeCurve, GenerationOption
from planner.rl.evaluate import evaluate
from planner.rl.in_flight import flow_of, mean_busy_s
from planner.rl.plan import GenerationGroup, RlMode
from planner.rl.problem import RlProblem
from planner.rl.search.search import solve
from planner.rl.training import Flow, flowing_s

AHEAD = tuple(RlMode("disaggregated", "k_step_async", staleness, True, True) for staleness in (1, 2))


@pytest.mark.parametrize("seed", range(100))
def test_samples_flow_as_they_do_step_by_step(seed: int) -> None:
    draw = np.random.default_rng(seed)
    count, group, window, replicas = (int(draw.integers(1, most)) for most in (14, 4, 5, 4))
    lengths = [(int(draw.integers(1, 6)), int(draw.integers(1, 9))) for _ in range(count)]
    step_s, sequence_s, token_s = draw.random(3) * [1.0, 0.3, 0.05 * (seed % 7 > 0)]
    curve = DecodeCurve(step_s, sequence_s, token_s, draw.uniform(2, 20), int(draw.integers(1, 5)), 30)
    simulated = run_window(
        np.array([prompt for prompt, _ in lengths]),
        np.array([output for _, output in lengths]),
        group,
        window,
        replicas,
        curve,
    )
    started, done = windowed(lengths, group, window, replicas, curve)
    assert simulated[0] == pytest.approx(started)
    assert simulated[1] == pytest.approx(done)


def flowing(seed: int) -> RlProblem:
    """A drawn problem whose generators run ahead and are updated in flight, prompts of two samples."""
    problem = read_problem(given_document(random_problem(seed, "async"), "problem"))
    return replace(problem, dispatch="fifo", max_groups=1, modes=AHEAD, samples_per_prompt=2)


@pytest.mark.parametrize("seed", range(6))
def test_the_search_equals_enumeration_where_weights_are_updated_in_flight(seed: int) -> None:
    problem = replace(flowing(seed), weight_sync_overlapped=seed % 3 == 2)
    solution = solve(problem)
    assert solution.bound == pytest.approx(solution.objective)
    assert solution.objective == pytest.approx(least_of_one_group(problem), rel=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_no_iteration_in_flight_undercuts_its_work_or_outlasts_a_drained_one(seed: int) -> None:
    problem = flowing(seed)
    plan = solve(problem).plan
    assert plan is not None
    assert plan.training is not None
    evaluation, group = evaluate(problem, plan), plan.groups[0]
    drained = replace(plan, mode=replace(plan.mode, in_flight=False))
    least_s = max(mean_busy_s(problem, group.option.curve) / group.replicas, evaluation.training_s)
    assert least_s + evaluation.handover_s <= evaluation.iteration_s * (1 + 1e-9)
    assert evaluation.iteration_s <= evaluate(problem, drained).iteration_s


def test_more_prompts_under_way_hide_the_longest_of_them() -> None:
    option = GenerationOption("gpus", 1, DecodeCurve(1.0, 0.01, 0.0, 1e9, 64, 10**6), 1)
    problem = flowing(1)
    lengths = np.where(np.arange(16) % 4 == 0, 100, 10)
    batch = replace(problem.batches[0], prompt_tokens_N=np.ones(16, np.int64), output_tokens_N=lengths, rank_key_N=None)
    problem = replace(problem, batches=(batch,))
    periods = [flow_of(problem, GenerationGroup(option, 2), staleness).period_s for staleness in (1, 2, 4)]
    assert periods[0] > 1.9 * periods[1] > 3.6 * periods[2]


def test_the_slowest_of_generators_trainers_and_staleness_decides() -> None:
    none, training = np.zeros(1), np.array([5.0])
    assert flowing_s(Flow(10.0, 12.0), training, none, none, 1) == pytest.approx(10.0)
    assert flowing_s(Flow(2.0, 4.0), training, none, none, 1) == pytest.approx(5.0)
    assert flowing_s(Flow(10.0, 19.0), training, none, none, 1) == pytest.approx((19.0 + 5.0) / 2)
    assert flowing_s(Flow(10.0, 19.0), training, none, none, 2) == pytest.approx(10.0)
    # stopping for 1 s in each 10 s of a stay, and on either side of the exchange
    assert flowing_s(Flow(10.0, 20.0), training, np.ones(1), none, 1) == pytest.approx((20.0 + 2.0 + 5.0 + 1.0) / 2)
