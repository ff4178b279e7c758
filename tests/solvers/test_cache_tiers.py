"""Units of cache tiers against all units; bad input."""

import itertools
import math

import numpy as np
import pytest

from planner.errors import PlannerError
from planner.solvers.caches.tiers import Tier, TierProblem, cheapest_tiers, cost_of
from planner.solvers.result import Status


def random_tiers(seed: int) -> TierProblem:
    draws = np.random.default_rng(seed)
    tiers = tuple(
        Tier(
            f"t{k}",
            int(draws.integers(1, 4)),
            int(draws.integers(0, 5)),
            float(draws.choice([0.0, 0.05, 0.4, 2.0])),
            float(draws.uniform(0.0, 1.2)),
            float(draws.choice([3.0, 6.0, math.inf])),
        )
        for k in range(int(draws.integers(1, 4)))
    )
    accesses = 60
    distance_A = draws.integers(-1, 25, accesses)
    return TierProblem(distance_A, draws.uniform(0.2, 2.0, accesses), np.arange(accesses) // 15, tiers, 0.3)


@pytest.mark.parametrize("seed", range(100))
def test_the_units_are_the_cheapest_of_all(seed: int) -> None:
    problem = random_tiers(seed)
    result = cheapest_tiers(problem)
    least = min(
        cost_of(problem, units) for units in itertools.product(*(range(tier.max_units + 1) for tier in problem.tiers))
    )
    assert result.status is Status.OPTIMAL
    assert result.solution is not None
    assert result.objective == pytest.approx(least, abs=1e-9)
    assert result.bound == result.objective
    assert cost_of(problem, result.solution) == result.objective


def test_a_tier_that_is_dearer_than_what_it_saves_is_not_bought() -> None:
    tiers = (Tier("host", 4, 10, 1e6, 0.0, math.inf),)
    problem = TierProblem(np.array([0, 1, 2]), np.ones(3), np.zeros(3, np.int64), tiers, 1.0)
    assert cheapest_tiers(problem).solution == (0,)


def test_a_bandwidth_is_held_in_every_window() -> None:
    distance_A, window_A = np.array([0, 0, 0, 0, 5]), np.array([0, 0, 0, 1, 1])
    fast = TierProblem(distance_A, np.ones(5), window_A, (Tier("ssd", 1, 6, 0.0, 0.0, 3.0),), 1.0)
    slow = TierProblem(distance_A, np.ones(5), window_A, (Tier("ssd", 1, 6, 0.0, 0.0, 2.0),), 1.0)
    assert cheapest_tiers(fast).objective == 0.0
    assert cheapest_tiers(slow).objective == 5.0


@pytest.mark.parametrize(
    "figures", [(0, 1, 1.0, 0.1, 1.0), (1, -1, 1.0, 0.1, 1.0), (1, 1, math.inf, 0.1, 1.0), (1, 1, 1.0, 0.1, 0.0)]
)
def test_tiers_that_cannot_be_are_refused(figures: tuple[int, int, float, float, float]) -> None:
    with pytest.raises(PlannerError, match="tier `ssd`"):
        Tier("ssd", *figures)
