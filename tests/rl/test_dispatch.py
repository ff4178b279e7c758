"""Dispatch from predicted lengths, and rankers that err as much as they say."""

from itertools import pairwise

import numpy as np
import pytest

from planner.rl.curves import DecodeCurve
from planner.rl.rollouts.dispatch import POLICIES, instance_s, placed, skewness_aware
from planner.rl.rollouts.ranker import keys_of_recall, noisy_keys, recall
from planner.rl.rollouts.rollout import simulate
from planner.rl.trajectories import SampleBatch

FAST = DecodeCurve(0.006, 5e-5, 2e-8, 60000.0, 64, 600_000)
SLOW = DecodeCurve(0.015, 1e-4, 4e-8, 20000.0, 64, 300_000)


def _lengths(seed: int, count: int = 400) -> np.ndarray:
    return np.minimum(20_000, np.random.default_rng(seed).lognormal(7.5, 1.0, count)).astype(np.int64) + 1


@pytest.mark.parametrize("wanted", [1.0, 0.85, 0.5, 0.2])
def test_keys_have_the_recall_asked_for(wanted: float) -> None:
    lengths = _lengths(1).astype(float) + np.linspace(0, 0.5, 400)
    keys = keys_of_recall(lengths, 0.2, wanted, seed=7)
    assert recall(keys, lengths, 0.2) == pytest.approx(wanted, abs=1 / 80)
    assert np.array_equal(keys, keys_of_recall(lengths, 0.2, wanted, seed=7))


def test_more_noise_means_less_recall() -> None:
    lengths = _lengths(2).astype(float)
    recalls = [recall(noisy_keys(lengths, sigma, 3), lengths, 0.2) for sigma in (0.0, 0.3, 1.0, 3.0)]
    assert recalls[0] == 1.0
    assert recalls == sorted(recalls, reverse=True)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("curves", [(FAST,) * 6, (FAST, FAST, SLOW, SLOW, SLOW)])
def test_every_trajectory_starts_exactly_once(policy: str, curves: tuple[DecodeCurve, ...]) -> None:
    lengths = _lengths(3)
    dispatched = POLICIES[policy](curves, lengths.astype(float))
    assert sorted(np.concatenate(dispatched.queues).tolist()) == list(range(400))
    batch = SampleBatch(np.full(400, 100, np.int64), lengths)
    result = simulate(dispatched.workers, batch.trajectories, dispatched.queues)
    assert np.isfinite(result.done_s_N).all()


def test_neighbours_in_length_share_a_worker_and_the_longest_is_on_a_fast_one() -> None:
    lengths = _lengths(4).astype(float)
    dispatched = placed((SLOW, FAST, SLOW, FAST), lengths)
    ranges = sorted((lengths[queue].min(), lengths[queue].max()) for queue in dispatched.queues if len(queue))
    assert all(below[1] <= above[0] for below, above in pairwise(ranges))
    assert int(lengths.argmax()) in np.concatenate([dispatched.queues[1], dispatched.queues[3]])


def test_a_simulated_split_is_never_behind_longest_first_and_pays_for_a_poor_ranker() -> None:
    lengths = _lengths(5, 900)
    curves = (DecodeCurve(0.006, 3e-4, 2e-8, 60000.0, 32, 600_000),) * 8
    samples = SampleBatch(np.full(900, 100, np.int64), lengths).trajectories

    def end_s(name: str, keys: np.ndarray) -> float:
        dispatched = POLICIES[name](curves, keys)
        return simulate(dispatched.workers, samples, dispatched.queues).end_s

    right, wrong = lengths.astype(float), keys_of_recall(lengths.astype(float), 0.2, 0.3, seed=1)
    assert end_s("split_simulated", right) <= end_s("longest_first", right) < end_s("fifo", right)
    assert end_s("split_simulated", right) < end_s("split_simulated", wrong)


def test_one_worker_needs_no_tail_group() -> None:
    dispatched = skewness_aware((FAST,), _lengths(6).astype(float))
    assert len(dispatched.queues) == 1
    assert instance_s(FAST, 0, 100.0, 10.0) == 0.0
