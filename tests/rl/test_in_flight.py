"""Rollouts whose weights are updated in flight: simulated step by step, bounded, and searched as enumeration does."""

from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
from rl_enumerated import least_of_one_group
from rl_problems import random_problem
from rl_window import windowed

from planner.documents.read import given_document
from planner.interchange.rl_problem import read_problem
from planner.rl.compiled import batches, queue, window
from planner.rl.compiled.window import Trainer, run_window
from planner.rl.coupled.in_flight import CoupledFlow
from planner.rl.coupled.iterations import Coupling, Work
from planner.rl.curves import DecodeCurve, GenerationOption, Service
from planner.rl.evaluate import evaluate
from planner.rl.in_flight import flow_of, mean_busy_s
from planner.rl.plan import GenerationGroup, RlMode
from planner.rl.problem import RlProblem
from planner.rl.search.search import solve
from planner.rl.training import Flow, Paced, flowing_s
from planner.solvers.compiled.machine_code import loop

AHEAD = tuple(RlMode("disaggregated", "k_step_async", staleness, True, True) for staleness in (1, 2))


def drawn(seed: int) -> tuple[list[tuple[int, int]], int, int, int, DecodeCurve, np.random.Generator]:
    """Samples as (prompt, output), samples of a prompt, prompts under way, replicas and their curve."""
    draw = np.random.default_rng(seed)
    count, group, window, replicas = (int(draw.integers(1, most)) for most in (14, 4, 5, 4))
    lengths = [(int(draw.integers(1, 6)), int(draw.integers(1, 9))) for _ in range(count)]
    step_s, sequence_s, token_s = draw.random(3) * [1.0, 0.3, 0.05 * (seed % 7 > 0)]
    curve = DecodeCurve(step_s, sequence_s, token_s, draw.uniform(2, 20), int(draw.integers(1, 5)), 30)
    return lengths, group, window, replicas, curve, draw


def drawn_service(draw: np.random.Generator) -> Service:
    """One that samples are sent to as they are generated."""
    servers, batch, jobs = (int(draw.integers(1, 4)) for _ in range(3))
    return Service("reference", "a", 1, servers, batch, draw.uniform(0, 3), draw.uniform(0, 0.2), jobs)


@pytest.mark.parametrize("seed", range(100))
def test_samples_flow_as_they_do_step_by_step(seed: int) -> None:
    lengths, group, window, replicas, curve, _ = drawn(seed)
    prompt_Q, output_Q = np.array(lengths).T
    unhindered = Trainer(np.array([len(lengths)]), np.zeros(1), 0)
    flown = run_window(prompt_Q, output_Q, group, window, replicas, curve, unhindered)
    started, done = windowed(lengths, group, window, replicas, curve)
    assert flown.started_s_Q == pytest.approx(started)
    assert flown.done_s_Q == pytest.approx(done)
    works = [Work(lengths, [])]
    coupled = CoupledFlow(curve, replicas, works, group, window, 1, lambda batch, order: 0.0, Coupling(0)).run()
    assert coupled.generated_s == pytest.approx([max(done)])


@pytest.mark.parametrize("seed", range(40))
def test_generators_servers_and_trainer_wait_for_each_other_as_in_the_coupled_simulation(seed: int) -> None:
    lengths, group, window, replicas, curve, draw = drawn(seed)
    lengths = [pair for pair in lengths for _ in range(group)]  # prompts that are whole
    staleness, count = int(draw.integers(0, 3)), 6
    train_s, stop_s, delay_s = map(float, draw.random(3) * [20, 3, 3])
    services = [drawn_service(draw) for _ in range(seed % 3)]
    prompt_Q, output_Q = np.array(lengths * count).T
    trainer = Trainer(np.full(count, len(lengths)), np.full(count, train_s), staleness, stop_s, delay_s)
    flown = run_window(prompt_Q, output_Q, group, window, replicas, curve, trainer, services)
    coupling = Coupling(staleness, stops=True, stop_s=stop_s, delay_s=delay_s)
    works = [Work(lengths, [])]

    def train(batch: int, order: Sequence[int]) -> float:
        return train_s

    seen = CoupledFlow(curve, replicas, works, group, window, count, train, coupling, services).run()
    assert flown.sent_s_B == pytest.approx(seen.trained_s)
    assert flown.done_s_Q.reshape(count, -1).max(axis=1) == pytest.approx(seen.generated_s)


@pytest.mark.parametrize("module", [queue, window, batches])
def test_loops_of_rollouts_are_called_without_numba(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_by_numba", None)  # so that falling back would raise
    loop._callable.cache_clear()
    curve, samples = DecodeCurve(1.0, 0.1, 0.01, 10.0, 4, 100), np.arange(1, 4)
    if module is queue:
        assert len(queue.run_queue(samples, samples, 2, curve)) == 3
    elif module is batches:
        assert batches.run_batches(samples.astype(float), samples, 1, 2, 1.0, 0.5).tolist() == [2.5, 4.5, 7.0]
    else:
        assert len(run_window(samples, samples, 1, 1, 2, curve, Trainer(np.array([3]), np.zeros(1), 0)).done_s_Q) == 3


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


@pytest.mark.parametrize("seed", [2, 4])
def test_groups_for_the_longest_samples_never_flow(seed: int) -> None:
    problem = flowing(seed)
    split = solve(replace(problem, max_groups=2, tail_fractions=(0.1, 0.5)))
    assert split.objective == pytest.approx(least_of_one_group(problem), rel=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_no_iteration_in_flight_undercuts_its_work(seed: int) -> None:
    problem = flowing(seed)
    plan = solve(problem).plan
    assert plan is not None
    assert plan.training is not None
    evaluation, group = evaluate(problem, plan), plan.groups[0]
    least_s = max(mean_busy_s(problem.batches, group.option.curve) / group.replicas, evaluation.training_s)
    assert least_s + evaluation.handover_s <= evaluation.iteration_s * (1 + 1e-9)


def test_more_prompts_under_way_hide_the_longest_of_them() -> None:
    option = GenerationOption("gpus", 1, DecodeCurve(1.0, 0.01, 0.0, 1e9, 64, 10**6), 1)
    problem = flowing(1)
    lengths = np.where(np.arange(16) % 4 == 0, 100, 10)
    batch = replace(problem.batches[0], prompt_tokens_N=np.ones(16, np.int64), output_tokens_N=lengths, rank_key_N=None)
    problem = replace(problem, batches=(batch,))
    periods = [flow_of(problem, GenerationGroup(option, 2), staleness, ()).period_s for staleness in (1, 2, 4)]
    assert periods[0] > 1.9 * periods[1] > 3.6 * periods[2]


def test_a_trainer_is_paced_between_those_simulated_and_no_faster_than_by_itself() -> None:
    none, flow = np.zeros(1), Flow(10.0, 12.0, {0.0: Paced(np.array([0.0, 8.0, 20.0]), np.array([10.0, 12.0, 20.0]))})
    for train_s, iteration_s in ((0.0, 10.0), (4.0, 11.0), (14.0, 16.0), (25.0, 25.0)):
        assert flowing_s(flow, np.array([train_s]), none, none) == pytest.approx(iteration_s)
    longer = replace(flow, paced={2.0: flow.paced[0.0]})
    assert flowing_s(longer, np.array([19.0]), np.full(1, 2.0), none) == pytest.approx(21.0)
    assert flow.times(2.0).paced[0.0].iteration_s(np.array([8.0])) == pytest.approx(22.0)
