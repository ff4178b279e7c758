"""Quantiles of the time to first token where prompts differ: against a simulated queue, the load that keeps them."""

import numpy as np
import pytest

from planner.kinds.serve.steady.time_limits import MEAN, UTILISATION, Queue, TimeLimit
from planner.solvers.stochastic.capped_lognormal import unit_quantile

P50, P95, P99 = (TimeLimit(f"p{percent}", percent / 100.0, 1.0) for percent in (50, 95, 99))


def simulated_s(used: float, cv: float, count: int = 200_000) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Waits and own times of prompts that take a second on average, one after another."""
    rng = np.random.default_rng(4)
    deviation = np.sqrt(np.log1p(cv**2))
    own_s = rng.lognormal(-(deviation**2) / 2.0, deviation, count)
    gaps_s = rng.exponential(1.0 / used, count)
    walk_s = np.concatenate([[0.0], np.cumsum(own_s[:-1] - gaps_s[1:])])  # Lindley's recursion: above its lowest so far
    return (walk_s - np.minimum.accumulate(walk_s) + own_s)[count // 20 :]


@pytest.mark.parametrize("used", [0.1, 0.4, 0.8])
@pytest.mark.parametrize("cv", [0.5, 1.0])
def test_quantiles_are_those_of_simulated_prompts(used: float, cv: float) -> None:
    times_s, queue, one_s = simulated_s(used, cv), Queue(1.0, cv**2), np.ones(1)
    for limit in (P95, P99):
        assert limit.quantile is not None
        predicted_s = 1.0 + limit.wait_s(np.array([used]), one_s, queue, None, one_s)[0]
        assert predicted_s == pytest.approx(np.quantile(times_s, limit.quantile), rel=0.2)
    mean_s = 1.0 + MEAN.wait_s(np.array([used]), one_s, queue, None, one_s)[0]
    assert mean_s == pytest.approx(times_s.mean(), rel=0.05)


@pytest.mark.parametrize("used", [0.1, 0.4, 0.8])
def test_long_tails_are_nearer_than_by_mean_prompts(used: float) -> None:
    """Waits behind prompts of cv 2 have longer tails than exponential ones: both are too short."""
    times_s, queue, busy, one_s = simulated_s(used, 2.0), Queue(1.0, 4.0), np.array([used]), np.ones(1)
    for limit in (P95, P99):
        assert limit.quantile is not None
        plain_s = 1.0 + limit.wait_s(busy, one_s, queue)[0]
        predicted_s = 1.0 + limit.wait_s(busy, one_s, queue, None, one_s)[0]
        assert plain_s < predicted_s < 1.1 * np.quantile(times_s, limit.quantile)


def test_the_load_that_keeps_a_quantile_is_the_largest_of_the_grid() -> None:
    rng, queue = np.random.default_rng(1), Queue(1.0, 1.0)
    rooms_s, varied_s = rng.uniform(0.0, 20.0, 200), rng.uniform(0.0, 2.0, 200)
    service_s = np.ones(200)
    for limit in (P50, P95):
        busy = limit.utilisation(rooms_s, service_s, queue, None, varied_s)
        kept = limit.wait_s(busy, service_s, queue, None, varied_s) <= rooms_s
        further = limit.wait_s(busy + UTILISATION[1], service_s, queue, None, varied_s) <= rooms_s
        assert np.all(kept | (busy == 0.0))
        assert not np.any(further & (busy < UTILISATION[-1]))
        assert np.all(busy > 0.0) or limit is P95


def test_prompts_of_one_length_wait_as_ever() -> None:
    used, one_s, queue = np.array([0.3, 0.9]), np.ones(2), Queue(1.0, 0.0)
    for limit in (MEAN, P95):
        assert np.array_equal(limit.wait_s(used, one_s, queue, None, one_s), limit.wait_s(used, one_s, queue)) or (
            limit.wait_s(used, one_s, queue, None, one_s) == pytest.approx(limit.wait_s(used, one_s, queue))
        )


def test_lognormal_quantiles_are_those_of_a_sample() -> None:
    sample = np.random.default_rng(2).lognormal(-np.log(2.0) / 2.0, np.sqrt(np.log(2.0)), 400_000)
    for probability in (0.1, 0.5, 0.9, 0.99):
        assert unit_quantile(probability, 1.0) == pytest.approx(np.quantile(sample, probability), rel=0.02)
