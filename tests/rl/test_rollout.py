"""The event-driven rollout against one that simulates every decode step."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout_cases import as_trajectories, as_workers, random_case
from rollout_oracle import NaiveRollout

from planner.rl.curves import DecodeCurve
from planner.rl.generation import finish_times
from planner.rl.rollouts.resume import not_started, resume, under_way
from planner.rl.rollouts.rollout import RolloutPolicy, RolloutWorker, simulate
from planner.rl.trajectories import SampleBatch, Trajectories


@given(st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_a_rollout_equals_one_simulated_token_by_token(seed: int) -> None:
    workers, trajectories, queues, policy = random_case(seed)
    naive = NaiveRollout(workers, trajectories, queues, policy)
    end_s = naive.run()
    result = simulate(
        as_workers(workers),
        as_trajectories(trajectories),
        [np.array(queue, np.int64) for queue in queues],
        RolloutPolicy(**policy),
    )
    assert np.allclose(result.done_s_N, naive.done, rtol=1e-9, atol=1e-9)
    assert np.isfinite(result.done_s_N).all()
    assert result.moved == naive.moved
    assert result.end_s == pytest.approx(end_s, rel=1e-9)
    assert np.allclose(result.busy_s_W, [worker.busy for worker in naive.workers], rtol=1e-9)


def _single(seed: int, count: int, longest: int) -> Trajectories:
    draw = np.random.default_rng(seed)
    output = np.minimum(longest, 1 + draw.lognormal(np.log(longest) - 1.5, 1.0, count).astype(np.int64))
    return SampleBatch(np.full(count, 100, np.int64), output).trajectories


CURVE = DecodeCurve(0.009, 3e-5, 2e-8, 40000.0, 64, 600_000)


def test_single_turns_finish_as_on_the_shared_queue_of_equal_replicas() -> None:
    samples = _single(1, 700, 4000)
    batch = SampleBatch(samples.prompt_N, samples.output_T)
    tight = DecodeCurve(0.009, 3e-5, 2e-8, 40000.0, 16, 20_000)
    result = simulate((RolloutWorker(tight),) * 5, samples, [np.arange(700)])
    assert np.allclose(result.done_s_N, finish_times(batch, np.arange(700), tight, 5), rtol=1e-9)


def test_512_trajectories_of_20k_tokens_on_64_replicas_take_less_than_50_ms() -> None:
    samples = SampleBatch(np.full(512, 300, np.int64), np.full(512, 20_000, np.int64)).trajectories
    ragged = _single(4, 512, 20_000)
    workers = (RolloutWorker(CURVE),) * 64
    simulate(workers, ragged, [np.arange(512)])
    for trajectories in (samples, ragged):
        spent_s = []
        for _ in range(5):
            started = time.process_time()
            simulate(workers, trajectories, [np.arange(512)])
            spent_s.append(time.process_time() - started)
        assert min(spent_s) < 0.05  # some 0.4 ms on a machine with nothing else to do


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_a_rollout_cut_and_resumed_where_it_stood_ends_as_if_never_cut(seed: int) -> None:
    workers, trajectories, queues, policy = random_case(seed)
    policy |= {"move_threshold": np.inf, "keep_kv": True, "longest_first": False}
    given_workers, all_of_them = as_workers(workers), as_trajectories(trajectories)
    arrays = [np.array(queue, np.int64) for queue in queues]
    whole = simulate(given_workers, all_of_them, arrays, RolloutPolicy(**policy))
    count = max(1, all_of_them.size - 3)
    cut = simulate(given_workers, all_of_them, arrays, RolloutPolicy(**policy), stop_after=count)
    waiting = under_way(cut)[cut.ready_s_N[under_way(cut)] == cut.end_s]
    if len(not_started(cut)) or len(waiting) > 1:  # nobody keeps the order of those that wait
        return
    where, when, tokens = cut.worker_N, cut.ready_s_N, cut.prefill_N
    again = RolloutPolicy(**policy)
    done = resume(all_of_them, cut, given_workers, where, when, tokens, again, same_workers=True)
    assert np.allclose(done, whole.done_s_N, rtol=1e-9)
