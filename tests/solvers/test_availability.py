"""Units away at once and the slowest present, against simulations of the same."""

import math

import numpy as np
import pytest

from planner.errors import PlannerError
from planner.solvers.stochastic.availability import Outage, Slowness, best_spares, mean_speed


def shortage(outages: list[Outage], spares: int) -> float:
    """The share of time in which more than `spares` units are away."""
    best = best_spares(outages, lambda number, _: number, spares).solution
    assert best is not None
    return best[1]


def _away_over_time(outages: list[Outage], horizon_s: float, times_s: np.ndarray, seed: int) -> np.ndarray:
    """Units away at `times_s`, arrivals drawn one by one, repair times uniform on [0, 2 mean]."""
    rng = np.random.default_rng(seed)
    away = np.zeros(len(times_s))
    for outage in outages:
        starts = np.sort(
            rng.uniform(-5 * outage.away_s, horizon_s, rng.poisson(outage.rate_per_s * (horizon_s + 5 * outage.away_s)))
        )
        ends = np.sort(starts + rng.uniform(0, 2 * outage.away_s, len(starts)))
        away += outage.units * (np.searchsorted(starts, times_s) - np.searchsorted(ends, times_s))
    return away


def test_the_share_of_time_short_of_units_is_that_of_a_simulation() -> None:
    outages = [Outage(1 / 3000, 6000.0), Outage(1 / 40_000, 8000.0, units=4)]
    times_s = np.arange(0, 3e8, 997.0)
    away = _away_over_time(outages, 3e8, times_s, seed=4)
    for spares in (0, 2, 4, 7):
        assert shortage(outages, spares) == pytest.approx(float((away > spares).mean()), abs=0.004)


def test_one_cause_of_single_units_is_poisson() -> None:
    load = 1.7
    within = sum(math.exp(-load) * load**n / math.factorial(n) for n in range(4))
    assert shortage([Outage(1.7, 1.0)], 3) == pytest.approx(1 - within, abs=1e-12)


def test_nothing_is_short_where_nothing_fails() -> None:
    assert shortage([Outage(0.0, 100.0)], 0) == 0.0


def test_the_best_number_of_spares_is_the_best_of_all() -> None:
    outages = [Outage(1 / 5000, 20_000.0), Outage(1 / 90_000, 10_000.0, units=2)]

    def value(spares: int, short: float) -> float:
        return (1 - short) * 100 / (100 + spares)

    result = best_spares(outages, value, 40)
    tried = [value(spares, shortage(outages, spares)) for spares in range(41)]
    assert result.solution is not None
    assert result.solution[0] == int(np.argmax(tried))
    assert result.objective == pytest.approx(max(tried))


def test_the_mean_speed_is_that_of_a_simulation() -> None:
    slow = [Slowness(1 / 4000, 1000.0, 0.9), Slowness(1 / 20_000, 3000.0, 0.6)]
    times_s = np.arange(0, 2e8, 499.0)
    speed = np.ones(len(times_s))
    for index, slowness in enumerate(slow):
        present = _away_over_time([Outage(slowness.rate_per_s, slowness.lasting_s)], 2e8, times_s, seed=index) > 0
        speed = np.where(present, np.minimum(speed, slowness.speed), speed)
    assert mean_speed(slow) == pytest.approx(float(speed.mean()), abs=0.002)


@pytest.mark.parametrize("speed", [0.0, 1.5])
def test_a_slow_unit_is_slower_than_the_others(speed: float) -> None:
    with pytest.raises(PlannerError, match="at a fraction of the speed"):
        mean_speed([Slowness(1.0, 1.0, speed)])


def test_outages_take_units() -> None:
    with pytest.raises(PlannerError, match="take one unit or more"):
        shortage([Outage(1.0, 1.0, units=0)], 1)
