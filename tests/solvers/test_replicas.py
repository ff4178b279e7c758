"""Copies of a service over a day: equal to every schedule enumerated, never below the bounds."""

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.solvers.result import Status
from planner.solvers.schedules.replicas import Service, fewest_copy_slots, schedule


def drawn(seed: int) -> Service:
    draw = random.Random(seed)
    load = np.array([float(draw.randint(0, 12)) for _ in range(4)])
    capacity, share = float(draw.randint(2, 5)), draw.choice([0.7, 0.9, 1.0])
    return Service(load, capacity, share, draw.choice([0.0, 0.5]), draw.choice([0.0, 0.3]), draw.randint(0, 3))


def served(service: Service, copies: tuple[int, ...]) -> float:
    """By the definition, the two parts of every slot apart."""
    total, before = 0.0, service.before
    for load, now in zip(service.load_T, copies, strict=True):
        for part, ready in ((service.start_up, min(before, now)), (1.0 - service.start_up, now)):
            total += part * min(float(load), service.capacity * ready)
        before = now
    return total


def cheapest(service: Service) -> float | None:
    """Over all schedules; None where none serves enough."""
    costs = [
        sum(copies) + service.change * sum(abs(b - a) for a, b in itertools.pairwise((service.before, *copies)))
        for copies in itertools.product(range(service.most + 1), repeat=len(service.load_T))
        if served(service, copies) >= service.wanted * (1.0 - 1e-9)
    ]
    return min(costs) if costs else None


@pytest.mark.parametrize("block", range(10))
def test_bounds_are_no_more_and_schedules_no_less_than_the_cheapest_of_all(block: int) -> None:
    """A hundred services; most schedules are the cheapest."""
    for seed in range(10 * block, 10 * block + 10):
        service, result = drawn(seed), schedule(drawn(seed))
        best = cheapest(service)
        if best is None:
            assert result.status is Status.INFEASIBLE
            continue
        assert result.solution is not None
        assert result.objective is not None
        assert result.bound is not None
        assert served(service, result.solution) >= service.wanted * (1.0 - 1e-6)
        assert fewest_copy_slots(service) <= best + 1e-9
        assert result.bound <= best + 1e-9 <= result.objective + 2e-9


@pytest.mark.parametrize("seed", range(20))
def test_without_start_ups_and_changes_the_fewest_copy_slots_are_what_the_cheapest_schedule_has(seed: int) -> None:
    drawn_one = drawn(seed)
    service = Service(drawn_one.load_T, drawn_one.capacity, drawn_one.share)
    assert fewest_copy_slots(service) == cheapest(service)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.floats(0.0, 500.0), min_size=2, max_size=10),
    st.floats(40.0, 60.0),
    st.floats(0.0, 1.0),
    st.sampled_from([0.0, 0.25, 1.0]),
)
def test_no_schedule_crosses_a_bound(load: list[float], capacity: float, share: float, start_up: float) -> None:
    service = Service(np.array(load), capacity, share, start_up, 0.1, 1)
    result = schedule(service)
    if result.solution is not None and result.bound is not None and result.objective is not None:
        assert service.served(result.solution) >= service.wanted * (1.0 - 1e-6) - 1e-6
        assert max(result.bound, fewest_copy_slots(service)) <= result.objective + 1e-6


def test_numbers_of_no_service_are_refused() -> None:
    for wrong in ((np.array([]), 1.0, 0.9), (np.array([-1.0]), 1.0, 0.9), (np.array([1.0]), 0.0, 0.9)):
        with pytest.raises(PlannerError):
            Service(*wrong)
