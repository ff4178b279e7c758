"""Rollouts changed on the way: fused with inference, on other workers, carried over to the next iteration."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.rl.curves import DecodeCurve
from planner.rl.partial import successive
from planner.rl.rollouts.fusion import Inference, Move, change_workers, fuse, inference_end_s
from planner.rl.rollouts.resume import joined, remainder, tokens_left
from planner.rl.rollouts.rollout import RolloutWorker, simulate
from planner.rl.trajectories import SampleBatch, Trajectories

CURVE = DecodeCurve(0.01, 0.001, 0.0, 1e12, 8, 10**6)  # 10 ms a step, 1 ms a sequence, prompts for nothing


def _samples(*lengths: int) -> Trajectories:
    return SampleBatch(np.ones(len(lengths), np.int64), np.array(lengths, np.int64)).trajectories


def _queue(samples: Trajectories) -> list[np.ndarray]:
    return [np.arange(samples.size)]


def test_a_fusion_by_hand() -> None:
    """Four samples on two workers; after step 10 the long ones share a worker, the other begins to infer."""
    samples = _samples(100, 200, 10, 10)
    workers = (RolloutWorker(CURVE), RolloutWorker(CURVE))
    fused = fuse(workers, samples, _queue(samples), Inference(100.0), Move(0.05, 0.0), thresholds=[2])
    cut_s = 10 * 0.012
    # The busier worker goes on with 190 tokens; the other's 90 join at the first step boundary after the move.
    steps_alone = int(np.ceil(0.05 / 0.011 - 1e-9))
    generation_s = cut_s + steps_alone * 0.011 + 90 * 0.012 + (190 - 90 - steps_alone) * 0.011
    assert fused.generation_s == pytest.approx(generation_s)
    assert fused.unfused_s == pytest.approx(cut_s + 190 * 0.011 + 324 / 200)
    assert (fused.threshold, fused.kept) == (2, 1)
    assert fused.end_s < fused.unfused_s


def test_no_fusion_where_it_does_not_pay() -> None:
    samples = _samples(100, 100, 100, 100)
    workers = (RolloutWorker(CURVE), RolloutWorker(CURVE))
    fused = fuse(workers, samples, _queue(samples), Inference(1e9), Move(5.0), thresholds=[1, 2, 3])
    assert (fused.threshold, fused.kept, fused.end_s) == (0, 2, fused.unfused_s)


@given(st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_inference_beside_generation_ends_as_in_small_steps_of_time(seed: int) -> None:
    draw = np.random.default_rng(seed)
    done = np.sort(draw.uniform(1.0, 5.0, 12))
    tokens = draw.uniform(1.0, 30.0, 12)
    workers, kept, free_s = 4, int(draw.integers(1, 4)), float(draw.uniform(0.5, 4.0))
    inference = Inference(float(draw.uniform(5.0, 60.0)), float(draw.uniform(0.0, 0.5)))
    end_s = inference_end_s(done, tokens, workers, kept, free_s, inference)
    step, clock, processed = 4e-3, 0.0, 0.0
    while processed < tokens.sum() - 1e-9:
        clock += step
        available = tokens[done <= clock].sum()
        rate = inference.tokens_per_s * (workers - kept) if clock > free_s else 0.0
        if clock > max(done[-1] + inference.start_s, free_s):
            rate = inference.tokens_per_s * workers
        processed = min(available, processed + rate * step)
    assert end_s == pytest.approx(clock, abs=5e-2)


def test_a_change_of_workers_by_hand() -> None:
    """Slow for few sequences early, fast for few late: the last sample goes on on the fast worker."""
    wide = DecodeCurve(0.01, 0.0001, 0.0, 1e12, 8, 10**6)
    quick = DecodeCurve(0.002, 0.004, 0.0, 1e12, 8, 10**6)
    samples = _samples(10, 10, 10, 200)
    change = change_workers(
        (RolloutWorker(wide),),
        (RolloutWorker(quick),),
        samples,
        _queue(samples),
        thresholds=[1, 2, 3],
        change_s=0.1,
        recompute=False,
    )
    assert change.threshold == 1
    assert change.end_s == pytest.approx(10 * 0.0104 + 0.1 + 190 * 0.006)
    assert change.unchanged_s == pytest.approx(10 * 0.0104 + 190 * 0.0101)
    costly = change_workers(
        (RolloutWorker(wide),), (RolloutWorker(quick),), samples, _queue(samples), thresholds=[1], change_s=9.0
    )
    assert (costly.threshold, costly.end_s) == (0, costly.unchanged_s)


def test_tokens_are_neither_lost_nor_made_twice_when_carried_over() -> None:
    draw = np.random.default_rng(2)
    turns = draw.integers(1, 4, 20)
    count = int(turns.sum())
    whole = Trajectories(
        draw.integers(1, 9, 20),
        np.append(0, np.cumsum(turns)),
        draw.integers(1, 40, count),
        draw.exponential(0.1, count),
        draw.integers(0, 5, count),
        np.ones(count),
    )
    cut = simulate((RolloutWorker(CURVE),) * 2, whole, _queue(whole), stop_after=9)
    rest = np.flatnonzero(np.isinf(cut.done_s_N))
    carried = remainder(whole, cut, rest)
    assert np.array_equal(carried.remaining_T[carried.first_N[:-1]], tokens_left(whole, cut)[rest])
    assert np.array_equal(carried.final_context_N, whole.final_context_N[rest])
    both = joined([carried, whole])
    assert np.array_equal(both.final_context_N, np.append(carried.final_context_N, whole.final_context_N))


def test_partial_rollouts_waste_nothing_and_over_sampling_keeps_nothing() -> None:
    draw = np.random.default_rng(3)
    fresh = [_samples(*draw.lognormal(4, 1, 40).astype(int) + 1) for _ in range(4)]
    workers = (RolloutWorker(CURVE),) * 3
    partial = successive(workers, fresh, 30, keep=True)
    thrown = successive(workers, fresh, 30, keep=False)
    everyone = successive(workers, [_samples(*batch.output_T[:30]) for batch in fresh], 30, keep=False)
    assert all(iteration.wasted_tokens == 0 for iteration in partial)
    assert all(iteration.carried == 0 and iteration.stale_tokens == 0 for iteration in thrown)
    assert sum(iteration.wasted_tokens for iteration in thrown) > 0
    assert partial[0].stale_tokens == 0
    assert sum(iteration.stale_tokens for iteration in partial[1:]) > 0
    assert all(fewer.generation_s < other.generation_s for fewer, other in zip(thrown, everyone, strict=True))
