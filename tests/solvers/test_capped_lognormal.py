"""Moments and chances of lognormal variables that are cut at a cap, against samples."""

import numpy as np
import pytest

from planner.solvers.stochastic.capped_lognormal import (
    capped_means,
    capped_squares,
    chance_above,
    compound_capped_means,
    unit_quantile,
    unit_quantiles,
)

CAPS = np.array([0.1, 1.0, 3.0, 50.0])


def sample(cv: float, count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    deviation = np.sqrt(np.log1p(cv**2))
    return np.random.default_rng(1).lognormal(-(deviation**2) / 2.0, deviation, count)


@pytest.mark.parametrize("cv", [0.0, 0.3, 2.0])
def test_capped_moments_and_chances_are_those_of_a_sample(cv: float) -> None:
    drawn = sample(cv, 400_000)
    cut = np.minimum(drawn[None, :], CAPS[:, None])
    assert capped_means(CAPS, cv**2) == pytest.approx(cut.mean(axis=1), rel=0.02)
    assert capped_squares(CAPS, cv**2) == pytest.approx((cut**2).mean(axis=1), rel=0.04)
    assert chance_above(CAPS * 1.01, cv**2) == pytest.approx([(drawn > cap * 1.01).mean() for cap in CAPS], abs=0.003)


@pytest.mark.parametrize("number", [0.2, 1.0, 3.0])
@pytest.mark.parametrize("cv", [0.0, 1.0])
def test_capped_sums_of_a_random_number_come_near_a_sample(number: float, cv: float) -> None:
    rng = np.random.default_rng(2)
    counts, drawn = rng.poisson(number, 50_000), sample(cv, 50_000 * 12).reshape(50_000, 12)
    sums = np.where(np.arange(12) < counts[:, None], drawn, 0.0).sum(axis=1)
    for cap in (0.5, 1.0, 2.0, 5.0):
        predicted = compound_capped_means(np.array([number]), cv**2, np.array([cap]))
        assert predicted == pytest.approx(np.minimum(sums, cap).mean(), rel=0.12)


def test_quantiles_of_many_are_those_of_each() -> None:
    cv2 = np.array([0.0, 0.5, 4.0])
    for probability in (0.0, 0.1, 0.99, 1.0):
        assert unit_quantiles(probability, cv2).tolist() == pytest.approx([unit_quantile(probability, c) for c in cv2])
