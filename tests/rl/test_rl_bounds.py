"""Bounds stay below every rollout; searches built on them equal plain enumeration, also beyond the benchmark's form."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rl_problems import random_problem
from rollout_cases import as_trajectories, as_workers, random_case

from planner.documents.read import given_document
from planner.interchange.rl_problem import read_problem
from planner.rl.curves import DecodeCurve, GenerationOption, Scoring
from planner.rl.evaluate import evaluate
from planner.rl.generation import finish_times
from planner.rl.plan import Fusion, GenerationGroup, LateReplicas, RlMode, RlPlan
from planner.rl.problem import RlProblem
from planner.rl.rollouts.rollout import RolloutPolicy, simulate
from planner.rl.search.agentic_search import mixed_bound_s
from planner.rl.search.bounds import generation_bound_s, work_bound_s
from planner.rl.search.search import solve
from planner.rl.search.trainings import training_choices
from planner.rl.search.verify import derive_bound
from planner.rl.training import TrainingTable, minibatch_s, rollout_of
from planner.rl.trajectories import SampleBatch, Trajectories
from planner.solvers.result import Status


@given(st.integers(0, 2**32))
@settings(max_examples=80, deadline=None)
def test_no_rollout_ends_before_its_bound(seed: int) -> None:
    draw = np.random.default_rng(seed)
    count, replicas = int(draw.integers(1, 60)), int(draw.integers(1, 6))
    prompt, output = draw.integers(0, 50, count), draw.lognormal(3, 1, count).astype(np.int64) + 1
    longest = int((prompt + output).max())
    step_s, sequence_s, token_s = (float(draw.exponential(scale)) for scale in (0.02, 0.002, 1e-4))
    rate, slots = float(draw.uniform(50, 5000)), int(draw.integers(1, 12))
    curve = DecodeCurve(step_s, sequence_s, token_s, rate, slots, int(longest * draw.uniform(1, 4)))
    done = np.sort(finish_times(SampleBatch(prompt, output), draw.permutation(count), curve, replicas))
    for needed in {1, count // 2 + 1, count}:
        bound = generation_bound_s(prompt, output, needed, curve, np.array([replicas], float))[0]
        assert bound <= done[needed - 1]


@given(st.integers(0, 2**32))
@settings(max_examples=80, deadline=None)
def test_no_rollout_of_agents_ends_before_the_bound_of_its_mix(seed: int) -> None:
    workers, trajectories, queues, policy = random_case(seed)
    batch, mix = as_trajectories(trajectories), as_workers(workers)
    result = simulate(mix, batch, [np.array(queue, np.int64) for queue in queues], RolloutPolicy(**policy))
    groups = tuple(GenerationGroup(GenerationOption("a", 1, worker.curve, 1), 1) for worker in mix)
    assert mixed_bound_s(batch, groups) <= result.end_s * (1 + 1e-9)


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_no_training_takes_less_than_its_bound(seed: int) -> None:
    draw = np.random.default_rng(seed)
    problem = read_problem(given_document(random_problem(1, "drift"), "problem"))
    count = int(draw.integers(6, 40))
    parts, samples = int(draw.integers(1, 6)), int(draw.integers(6, count + 1))
    batch = SampleBatch(draw.integers(1, 9, count), draw.lognormal(3, 1, count).astype(np.int64) + 1)
    table = TrainingTable.of(training_choices(problem), [pool.name for pool in problem.pools])
    whole, part = work_bound_s(table, [batch], samples, parts)
    rollout = rollout_of((batch,), [draw.random(count)], parts, samples)
    work = minibatch_s(table, rollout.tokens_BK)[:, 0]
    assert (whole <= work.sum(axis=1)).all()
    assert (part <= work.min(axis=1)).all()


def _plans(problem: RlProblem) -> Iterator[RlPlan]:
    groups = [
        GenerationGroup(option, count)
        for option in problem.generation
        for count in range(1, problem.pool_of[option.pool].gpus // option.gpus + 1)
    ]
    largest = max(option.gpus for option in problem.generation)
    for mode, choice in itertools.product(problem.modes, training_choices(problem)):
        yield from (RlPlan(mode, (group,), choice) for group in groups)
        yield from (
            RlPlan(mode, (group,), choice, fusion=Fusion(threshold, kept))
            for group in groups
            for threshold in problem.fusion_thresholds
            for kept in range(1, group.replicas)
        )
        yield from (
            RlPlan(mode, (group,), choice, late=LateReplicas(threshold, late))
            for group, late in itertools.product(groups, groups)
            for threshold in problem.late_thresholds
        )
        for main, other in itertools.product(groups, groups) if problem.max_groups > 1 else ():
            idle = {
                name: problem.pool_of[name].gpus
                - sum(group.gpus for group in (main, other) if group.option.pool == name)
                for name in {main.option.pool, other.option.pool}
            }
            if all(0 <= left < largest for left in idle.values()):
                yield from (RlPlan(mode, (main, other), choice, share) for share in problem.tail_fractions)


ALL_MODES = (
    RlMode("colocated", "sync"),
    RlMode("disaggregated", "stream_sync"),
    RlMode("disaggregated", "k_step_async", 2),
    RlMode("hybrid", "sync"),
)


@pytest.mark.parametrize(
    ("seed", "what"),
    [
        *itertools.product(range(3), ["over-sampling", "all modes", "overlapped"]),
        *((0, what) for what in ("partial", "partial, young", "two groups")),
    ],
)
def test_the_search_equals_enumeration_beyond_the_benchmark(seed: int, what: str) -> None:
    problem = read_problem(given_document(random_problem(seed, "async"), "problem"))
    size = min(batch.size for batch in problem.batches)
    changes: dict[str, dict[str, object]] = {
        "over-sampling": {"samples": max(problem.minibatches, size - 2)},
        "partial": {"samples": max(problem.minibatches, size - 2), "partial": True},
        "partial, young": {"samples": max(problem.minibatches, size - 2), "partial": True, "max_staleness": 1},
        "two groups": {"max_groups": 2, "tail_fractions": (0.3,), "modes": ALL_MODES[1:2]},
        "all modes": {"modes": ALL_MODES},
        "overlapped": {
            "weight_sync_overlapped": True,
            "modes": (*ALL_MODES, RlMode("disaggregated", "one_step_async", 1)),
        },
    }
    if what.startswith("partial"):
        ahead = tuple(RlMode("disaggregated", "k_step_async", staleness) for staleness in (1, 2))
        problem = replace(problem, dispatch="fifo", batches=problem.batches * 3, modes=(*ALL_MODES[:2], *ahead))
    problem = replace(problem, **changes[what])  # type: ignore[arg-type]  # one table for fields of several types
    evaluated = [evaluate(problem, plan) for plan in _plans(problem)]
    feasible = [evaluation.objective for evaluation in evaluated if evaluation.feasible]
    solution = solve(problem)
    assert solution.status is Status.OPTIMAL
    assert solution.objective == pytest.approx(min(feasible), rel=1e-9)
    assert solution.seen + solution.pruned == len(feasible) or what == "partial, young"


@pytest.mark.parametrize("seed", range(2))
def test_the_search_equals_enumeration_where_scoring_is_fused_with_generation(seed: int) -> None:
    problem = read_problem(given_document(random_problem(seed, "sync"), "problem"))
    trained = tuple(
        replace(option, score_gpu_s=0.8 * option.gpus / option.forward_tokens_per_s) for option in problem.training
    )
    scoring = {pool.name: (Scoring(trained[0].score_gpu_s, 0.05, 0.01, 1e-4),) for pool in problem.pools}
    roomy = tuple(replace(option, curve=replace(option.curve, max_running=8)) for option in problem.generation)
    problem = replace(
        problem, training=trained, generation=roomy, scoring=scoring, fusion_thresholds=(0.2, 0.5), modes=ALL_MODES[::3]
    )
    plans = list(_plans(problem))
    feasible = [(evaluation.objective, plan) for plan in plans if (evaluation := evaluate(problem, plan)).feasible]
    solution = solve(problem)
    best = min(objective for objective, _ in feasible)
    assert any(plan.fusion for _, plan in feasible)
    assert solution.status is Status.OPTIMAL
    assert solution.objective == pytest.approx(best, rel=1e-9)
    assert derive_bound(problem, 1.05 * best, 1e-9).least == pytest.approx(best)
    assert solve(replace(problem, fusion_thresholds=())).objective == pytest.approx(
        min(objective for objective, plan in feasible if plan.fusion is None)
    )


def test_the_search_equals_enumeration_where_other_replicas_end_the_rollout() -> None:
    problem = read_problem(given_document(random_problem(0, "sync"), "problem"))
    wide, quick = (
        replace(option, curve=replace(option.curve, max_running=8, step_s=step_s, sequence_s=sequence_s))
        for option, step_s, sequence_s in zip(problem.generation[:2], (0.05, 0.002), (0.0005, 0.01), strict=True)
    )
    modes = (ALL_MODES[0], ALL_MODES[2])
    problem = replace(
        problem, generation=(wide, quick), late_thresholds=(0.2, 0.5), late_change_s=0.02, modes=modes, dispatch="fifo"
    )
    feasible = [
        (evaluation.objective, plan) for plan in _plans(problem) if (evaluation := evaluate(problem, plan)).feasible
    ]
    solution = solve(problem)
    best = min(objective for objective, _ in feasible)
    assert any(plan.late for _, plan in feasible)
    assert solution.status is Status.OPTIMAL
    assert solution.objective == pytest.approx(best, rel=1e-9)
    assert derive_bound(problem, 1.05 * best, 1e-9).least == pytest.approx(best)


def test_the_search_equals_enumeration_where_samples_wait_and_move_by_policies() -> None:
    problem = read_problem(given_document(random_problem(0, "async"), "problem"))
    draw = np.random.default_rng(0)
    batches = tuple(_with_turns(batch, draw) for batch in problem.batches)
    policies = tuple(RolloutPolicy(True, longest, most, 0.01, 1e-4) for longest in (False, True) for most in (inf, 1.2))
    problem = replace(problem, batches=batches, policies=policies, modes=ALL_MODES[:3], dispatch="fifo")
    whole = [replace(plan, policy=policy) for plan in _plans(problem) for policy in policies]
    feasible = [evaluation.objective for plan in whole if (evaluation := evaluate(problem, plan)).feasible]
    solution = solve(problem)
    assert solution.objective == pytest.approx(min(feasible), rel=1e-9)
    assert solution.seen + solution.pruned == len(feasible)


def _with_turns(batch: SampleBatch, draw: np.random.Generator) -> SampleBatch:
    turns = draw.integers(1, 3, batch.size)
    turns = np.minimum(turns, batch.output_tokens_N)
    first_N = np.append(0, np.cumsum(turns))
    part_T = np.concatenate([np.full(count, 1) for count in turns])
    part_T[first_N[1:] - 1] = batch.output_tokens_N - turns + 1
    left_T = np.ones(len(part_T))
    waits_T = draw.exponential(0.05, len(part_T))
    none_T = np.zeros(len(part_T), np.int64)
    return replace(batch, turns=Trajectories(batch.prompt_tokens_N, first_N, part_T, waits_T, none_T, left_T))


def test_stopped_at_any_moment_the_bound_is_below_the_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = read_problem(given_document(random_problem(5, "async"), "problem"))
    best = solve(problem).objective
    assert best is not None
    gaps: list[float] = []
    for steps in range(1, 40):
        clock = itertools.count()
        monkeypatch.setattr("time.perf_counter", lambda clock=clock: float(next(clock)))
        solution = solve(problem, time_limit_s=float(steps))
        monkeypatch.undo()
        if solution.objective is not None and solution.bound is not None:
            assert solution.bound <= best * (1 + 1e-12)
            assert solution.objective >= best * (1 - 1e-12)
            gaps.append(solution.gap or 0.0)
    assert gaps[-1] <= gaps[0]
    assert len(gaps) > 5
