"""Memory beside machines against all units of small instances; prices from which on none is bought; bad input."""

import itertools
import math

import numpy as np
import pytest

from planner.errors import PlannerError
from planner.solvers.caches.memory_boxes import Machines, MemoryProblem, Units, cheapest_memory, none_above
from planner.solvers.result import Status


def steps(seed: int) -> MemoryProblem:
    """Machines that fall in steps with what units do together, beside waits that some units have more of."""
    draws = np.random.default_rng(seed)
    tiers = int(draws.integers(1, 4))
    most = tuple(int(draws.integers(0, 6)) for _ in range(tiers))
    weights = draws.uniform(0.2, 1.0, tiers)
    start, step = float(draws.integers(4, 20)), float(draws.choice([0.5, 1.0, 2.0]))
    waits = draws.choice([0.0, 0.0, 1.0], size=tuple(count + 1 for count in most))
    infeasible = float(draws.choice([-1.0, 0.0, 1.5]))

    def floor(units: Units) -> float:
        done = float(np.dot(weights, units))
        return math.inf if done < infeasible else max(start - step * math.floor(done), 1.0)

    return MemoryProblem(
        tuple(draws.choice([0.0, 0.1, 0.4, 0.7], size=tiers).tolist()),
        most,
        lambda units: floor(units) + float(waits[units]),
        floor,
    )


def everything(problem: MemoryProblem, scale: float = 1.0) -> float:
    return min(
        scale * sum(p * n for p, n in zip(problem.price_K, units, strict=True)) + problem.value(units)
        for units in itertools.product(*(range(most + 1) for most in problem.most_K))
    )


@pytest.mark.parametrize("seed", range(100))
def test_the_least_price_is_that_of_all_units(seed: int) -> None:
    problem = steps(seed)
    answer, least = cheapest_memory(problem), everything(problem)
    if least == math.inf:
        assert answer.status is Status.INFEASIBLE
        return
    assert answer.status is Status.OPTIMAL
    assert answer.objective == pytest.approx(least)
    assert answer.bound == pytest.approx(least)
    assert answer.solution is not None
    assert problem.memory(answer.solution) + problem.value(answer.solution) == pytest.approx(least)
    loose = cheapest_memory(problem, gap=0.2)
    assert loose.objective is not None
    assert loose.bound is not None
    assert loose.bound <= least + 1e-9 <= loose.objective + 2e-9 <= least / 0.8 + 3e-9


@pytest.mark.parametrize("seed", range(40))
def test_from_the_price_that_is_told_on_memory_saves_nothing(seed: int) -> None:
    problem = steps(seed)
    machines = Machines(problem)
    bought = cheapest_memory(problem, machines).solution
    factor = None if bought is None else none_above(problem, machines, bought)
    if factor is None:
        return
    alone = problem.value((0,) * len(problem.most_K))
    assert everything(problem, factor * 1.001) == pytest.approx(alone)
    if factor > 1.0:
        assert everything(problem, factor * 0.999) < alone


def test_prices_below_nothing_and_tiers_without_one_are_refused() -> None:
    with pytest.raises(PlannerError, match="below 0"):
        MemoryProblem((-1.0,), (3,), lambda _: 1.0, lambda _: 1.0)
    with pytest.raises(PlannerError, match="1 prices of 2 tiers"):
        MemoryProblem((1.0,), (3, 1), lambda _: 1.0, lambda _: 1.0)
