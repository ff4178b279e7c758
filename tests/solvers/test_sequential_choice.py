"""Beliefs, expected rewards and the next measurement against closed forms, sampling and brute force."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.solvers.stochastic import sequential_choice as sequential
from planner.solvers.stochastic.sequential_choice import (
    Belief,
    BeliefState,
    best,
    chances,
    expected_rewards,
    gains,
    next_measurements,
)


def _choice(
    seed: int, size: int = 5, *, spread: float = 0.2, noise: float = 1e-4, both_limits: bool = False
) -> BeliefState:
    rng = np.random.default_rng(seed)
    place_M = np.sort(rng.uniform(0.0, 4.0, size))
    likeness_MM = np.exp(-np.abs(place_M[:, None] - place_M[None]))
    x = Belief(place_M / 4.0 - 4.0, spread**2 * likeness_MM, noise)
    y = Belief(place_M / 3.0 - 1.0, (2.0 * spread) ** 2 * likeness_MM, noise)
    limit_y = float(np.median(y.mean_M)) + 0.3 if both_limits else None
    return BeliefState(x, y, np.exp(place_M), np.full(size, 500.0), float(np.median(x.mean_M)) + 0.05, limit_y)


@pytest.mark.parametrize("seed", range(4))
def test_beliefs_after_measurements_are_those_of_conditioning_all_at_once(seed: int) -> None:
    belief = _choice(seed, 6, noise=0.01).x
    rng = np.random.default_rng(seed)
    indices, values_N = [4, 1, 3], rng.normal(-4.0, 0.3, 3)
    step_by_step = belief
    for index, value in zip(indices, values_N, strict=True):
        step_by_step = step_by_step.measured(index, float(value))
    among_NN = belief.covariance_MM[np.ix_(indices, indices)] + 0.01 * np.eye(3)
    weights_MN = belief.covariance_MM[:, indices] @ np.linalg.inv(among_NN)
    mean_M = belief.mean_M + weights_MN @ (values_N - belief.mean_M[indices])
    np.testing.assert_allclose(step_by_step.mean_M, mean_M, atol=1e-10)
    covariance_MM = belief.covariance_MM - weights_MN @ belief.covariance_MM[indices]
    np.testing.assert_allclose(step_by_step.covariance_MM, covariance_MM, atol=1e-10)


@pytest.mark.parametrize("seed", range(4))
def test_scales_of_a_student_t_after_measurements_are_those_of_conditioning_all_at_once(seed: int) -> None:
    belief = replace(_choice(seed, 6, noise=0.01).x, freedom=2.5)
    rng = np.random.default_rng(seed)
    indices, off_N = [4, 1, 3], rng.normal(0.0, 0.3, 3)
    after, gaussian = belief, replace(belief, freedom=math.inf)
    for index, off in zip(indices, off_N, strict=True):
        after = after.measured(index, float(belief.mean_M[index] + off))
        gaussian = gaussian.measured(index, float(belief.mean_M[index] + off))
    among_NN = belief.covariance_MM[np.ix_(indices, indices)] + 0.01 * np.eye(3)
    wider = (2.5 + off_N @ np.linalg.inv(among_NN) @ off_N) / (2.5 + 3.0)
    np.testing.assert_allclose(after.mean_M, gaussian.mean_M, atol=1e-10)
    np.testing.assert_allclose(after.covariance_MM, wider * gaussian.covariance_MM, atol=1e-10)
    assert after.freedom == 5.5


@given(st.integers(0, 500), st.integers(0, 4), st.floats(-5.0, -3.0))
@settings(max_examples=30, deadline=None)
def test_a_measured_alternative_is_known_up_to_noise_and_no_other_less_than_before(
    seed: int, index: int, value: float
) -> None:
    belief = _choice(seed, noise=1e-6).x
    after = belief.measured(index, value)
    assert after.mean_M[index] == pytest.approx(value, abs=1e-3)
    assert after.variance_M[index] <= 1e-6
    assert np.all(after.variance_M <= belief.variance_M * (1 + 1e-9))


@pytest.mark.parametrize(("freedom", "width"), [(2.4, 0.8), (6.0, 1.0), (math.inf, 1.0)])
def test_chances_outcomes_and_draws_are_of_one_distribution(freedom: float, width: float) -> None:
    """That of which an interval is stated: a Student-t of the belief's scales, as wide as held."""
    choice = _choice(3, both_limits=True)
    x, y = (replace(belief, freedom=freedom, width=width) for belief in (choice.x, choice.y))
    choice = replace(choice, x=x, y=y)
    rng = np.random.default_rng(5)
    draws = rng.standard_normal((400_000, 2)) / np.sqrt(
        1.0 if math.isinf(freedom) else rng.chisquare(freedom, (400_000, 2)) / freedom
    )
    assert choice.limit_y is not None
    for index, chance in enumerate(chances(choice)):
        kept = [
            belief.mean_M[index] + width * math.sqrt(belief.variance_M[index]) * draws[:, side] <= limit
            for side, (belief, limit) in enumerate(((x, choice.limit_x), (y, choice.limit_y)))
        ]
        assert chance == pytest.approx(float((kept[0] & kept[1]).mean()), abs=0.003)
    shares = [float((width * draws[:, 0] <= value).mean()) for value in x.outcomes(5)]
    assert shares == pytest.approx([0.1, 0.3, 0.5, 0.7, 0.9], abs=0.003)
    joint_DM = np.concatenate([sequential._joint(x, np.random.default_rng(seed)) for seed in range(60)])
    off_DM = (joint_DM - x.mean_M) / (width * np.sqrt(x.variance_M))
    assert np.quantile(off_DM, 0.9) == pytest.approx(float(np.quantile(draws, 0.9)), rel=0.03)


@pytest.mark.parametrize("index", range(5))
def test_what_a_result_would_leave_is_what_it_leaves(index: int) -> None:
    belief = replace(_choice(4, noise=0.01).x, freedom=2.5, width=0.9)
    off = np.array([-2.0, 0.3])
    after = belief.after(index, off)
    for row, deviation in enumerate(off):
        value = belief.mean_M[index] + deviation * math.sqrt(belief.variance_M[index] + belief.noise)
        left = belief.measured(index, float(value)).marginal
        np.testing.assert_allclose(after.mean[row], left.mean)
        np.testing.assert_allclose(after.scale[row], left.scale)
        assert after.freedom == left.freedom


@pytest.mark.parametrize("both_limits", [False, True])
def test_expected_rewards_are_those_of_sampling(both_limits: bool) -> None:
    choice = _choice(3, spread=0.15, both_limits=both_limits)
    rng = np.random.default_rng(0)
    draws = 200_000
    x_DM = choice.x.mean_M + rng.standard_normal((draws, 5)) * np.sqrt(choice.x.variance_M)
    y_DM = choice.y.mean_M + rng.standard_normal((draws, 5)) * np.sqrt(choice.y.variance_M)
    kept_DM = (x_DM <= choice.limit_x) & (y_DM <= (math.inf if choice.limit_y is None else choice.limit_y))
    sampled_M = np.where(kept_DM, choice.a_M / (np.exp(y_DM) + choice.b_M * np.exp(x_DM)), 0.0).mean(axis=0)
    np.testing.assert_allclose(expected_rewards(choice), sampled_M, atol=0.01 * sampled_M.max())
    np.testing.assert_allclose(chances(choice), kept_DM.mean(axis=0), atol=0.005)


def test_the_gain_of_a_measurement_is_that_of_brute_force_over_its_results() -> None:
    choice = _choice(7, 3, noise=0.0)
    rng = np.random.default_rng(1)
    now = expected_rewards(choice).max()
    for index in range(3):
        result = []
        for _ in range(3000):
            x = rng.normal(choice.x.mean_M[index], math.sqrt(choice.x.variance_M[index]))
            y = rng.normal(choice.y.mean_M[index], math.sqrt(choice.y.variance_M[index]))
            result.append(expected_rewards(choice.after(index, x, y)).max())
        error = np.std(result) / math.sqrt(len(result))
        assert gains(choice)[index] == pytest.approx(np.mean(result) - now, abs=4 * error + 0.01 * now)


@given(st.integers(0, 200), st.integers(1, 7))
@settings(max_examples=20, deadline=None)
def test_no_alternative_is_measured_twice(seed: int, count: int) -> None:
    choice = _choice(seed)
    (first,) = next_measurements(choice, 1, seed=0)
    after = choice.after(first, float(choice.x.mean_M[first]) + 0.1, float(choice.y.mean_M[first]))
    chosen = [first, *next_measurements(after, count, seed=seed)]
    assert len(chosen) == len(set(chosen)) == min(count + 1, 5)


def test_once_all_are_measured_nothing_is_left_to_gain() -> None:
    choice = _choice(2, 3, noise=0.0)
    for index in range(3):
        choice = choice.after(index, float(choice.x.mean_M[index]), float(choice.y.mean_M[index]))
    assert next_measurements(choice, 2, seed=0) == []
    assert not gains(choice).any()
    assert sequential.best_known(choice) == pytest.approx(expected_rewards(choice).max(), rel=1e-3)


def test_what_may_still_turn_out_best_is_measured_before_what_is_known_to_be_good() -> None:
    x = Belief(np.zeros(2), np.zeros((2, 2)), 0.0)
    y = Belief(np.zeros(2), np.diag([0.0, 1.0]), 0.0)
    choice = BeliefState(x, y, np.array([1.0, 0.5]), np.full(2, 1e-9), 1.0)  # 1 surely; 0.5 exp(1/2) = 0.82 on average
    assert expected_rewards(choice) == pytest.approx([1.0, 0.5 * math.exp(0.5)], rel=1e-6)
    assert next_measurements(choice, 1, seed=0) == [1]


def test_measurements_decided_on_together_start_with_the_best_single_one_and_repeat_with_the_seed() -> None:
    choice = _choice(11, 6)
    together = next_measurements(choice, 3, seed=5)
    assert together[:1] == next_measurements(choice, 1, seed=0)
    assert together == next_measurements(choice, 3, seed=5)


def test_the_best_is_the_one_that_keeps_the_limit_not_the_one_that_promises_most() -> None:
    sure = Belief(np.array([-4.0, -3.0]), np.eye(2) * 1e-6, 0.0)
    choice = BeliefState(sure, sure, np.array([1.0, 100.0]), np.ones(2), -3.5)
    assert best(choice) == 0
    assert chances(choice).tolist() == pytest.approx([1.0, 0.0])


def test_where_all_break_the_limit_the_one_of_least_x_is_chosen() -> None:
    sure = Belief(np.array([-2.0, -3.0, -1.0]), np.eye(3) * 1e-6, 0.0)
    assert best(BeliefState(sure, sure, np.ones(3), np.ones(3), -9.0)) == 1


@pytest.mark.parametrize("seed", range(3))
def test_knowing_all_is_worth_at_least_the_best_single_measurement(seed: int) -> None:
    choice = _choice(seed, 6, spread=0.3)
    single = expected_rewards(choice).max() + gains(choice).max()
    assert sequential.best_known(choice) >= 0.95 * single


def test_covariances_that_do_not_fit_are_refused() -> None:
    with pytest.raises(PlannerError):
        Belief(np.zeros(3), np.eye(2), 0.0)
