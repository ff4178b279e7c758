"""Moves against all states that can be reached step by step; bad input."""

import heapq
import itertools
import math

import numpy as np
import pytest

from planner.errors import PlannerError
from planner.solvers.placement.moves import Moves, State, Step, cheapest_order, least_moves
from planner.solvers.result import Status


def random_moves(seed: int, *, models: int = 4, devices: int = 3) -> Moves:
    draws = np.random.default_rng(seed)
    sizes = tuple(float(size) for size in draws.integers(1, 5, models))
    start: list[tuple[int, ...]] = []
    memory = [0.0] * devices
    for size in sizes:
        copies = int(draws.integers(1, 3)) if draws.random() < 0.3 else 1
        chosen = tuple(sorted(int(d) for d in draws.choice(devices, copies, replace=False)))
        start.append(chosen)
        for device in chosen:
            memory[device] += size
    memory = [float(max(held, 4.0) + draws.integers(0, 4)) for held in memory]
    loads = tuple(float(load) for load in draws.integers(1, 6, models))
    average = sum(load * len(d) for load, d in zip(loads, start, strict=True)) / devices
    apart = ((0, 1),) if draws.random() < 0.3 else ()
    return Moves(tuple(memory), sizes, loads, tuple(start), apart, float(average * draws.uniform(1.0, 1.6)))


def taken(problem: Moves, steps: tuple[Step, ...], least: tuple[int, ...]) -> tuple[State, float]:
    """Where the steps lead, and the bytes they bring; every step is held against the definition."""
    state = [set(devices) for devices in problem.start]
    brought = 0.0
    for step in steps:
        if step.to is not None:
            assert step.to not in state[step.model]
            state[step.model].add(step.to)
            brought += problem.size_M[step.model]
        for device, memory in enumerate(problem.memory_D):
            assert sum(s for s, d in zip(problem.size_M, state, strict=True) if device in d) <= memory + 1e-9
        if step.leaves is not None:
            state[step.model].remove(step.leaves)
        assert len(state[step.model]) >= least[step.model]
    return tuple(tuple(sorted(devices)) for devices in state), brought


def reachable(problem: Moves, least: tuple[int, ...], most: tuple[int, ...]) -> dict[State, float]:
    """Fewest bytes to every state, by single arrivals and departures."""
    best: dict[State, float] = {}
    heap: list[tuple[float, State]] = [(0.0, problem.start)]
    while heap:
        cost, state = heapq.heappop(heap)
        if state in best:
            continue
        best[state] = cost
        for model, devices in enumerate(state):
            changes: list[tuple[float, set[int]]] = []
            if len(devices) > least[model]:
                changes += [(0.0, set(devices) - {d}) for d in devices]
            for to in set(range(len(problem.memory_D))) - set(devices):
                held = sum(s for s, d in zip(problem.size_M, state, strict=True) if to in d)
                if held + problem.size_M[model] <= problem.memory_D[to] + 1e-9 and len(devices) <= most[model]:
                    changes.append((problem.size_M[model], {*devices, to}))
            for more, after in changes:
                heapq.heappush(heap, (cost + more, (*state[:model], tuple(sorted(after)), *state[model + 1 :])))
    return best


@pytest.mark.parametrize("seed", range(100))
def test_no_moves_bring_fewer_bytes(seed: int) -> None:
    problem = random_moves(seed)
    counts = tuple(map(len, problem.start))
    states = reachable(problem, counts, counts)
    kept = [cost for state, cost in states.items() if tuple(map(len, state)) == counts and problem.kept(state)]
    result = least_moves(problem)
    if not kept:
        assert result.status is Status.INFEASIBLE
        return
    assert result.status is Status.OPTIMAL
    assert result.solution is not None
    target, brought = taken(problem, result.solution.steps, counts)
    assert target == result.solution.target
    assert problem.kept(target)
    assert result.objective == pytest.approx(min(kept))
    assert brought == pytest.approx(min(kept))


@pytest.mark.parametrize("seed", range(40))
def test_orders_to_a_given_target_are_the_cheapest(seed: int) -> None:
    draws = np.random.default_rng(3_000 + seed)
    problem = random_moves(seed, models=3)
    targets = [
        tuple(sorted(int(d) for d in draws.choice(3, int(draws.integers(1, 3)), replace=False))) for _ in range(3)
    ]
    target = tuple(targets)
    least = tuple(min(len(a), len(b)) for a, b in zip(problem.start, target, strict=True))
    most = tuple(max(len(a), len(b)) for a, b in zip(problem.start, target, strict=True))
    cost = reachable(problem, least, most).get(target, math.inf)
    result = cheapest_order(problem, target)
    if math.isinf(cost):
        assert result.status is Status.INFEASIBLE
        return
    assert result.solution is not None
    assert result.objective == pytest.approx(cost)
    assert taken(problem, result.solution.steps, least)[0] == target


def test_copies_that_block_each_other_go_by_a_third_device() -> None:
    """Two full devices exchange their models over the only room there is."""
    problem = Moves((4.0, 4.0, 2.0), (2.0, 4.0, 2.0), (1.0, 1.0, 1.0), ((0,), (1,), (0,)))
    result = cheapest_order(problem, ((1,), (0,), (1,)))
    assert result.status is Status.INFEASIBLE  # the large one fits nowhere else
    problem = Moves((3.0, 3.0, 2.0), (2.0, 2.0), (1.0, 1.0), ((0,), (1,)))
    result = cheapest_order(problem, ((1,), (0,)))
    assert result.objective == pytest.approx(6.0)
    assert result.solution is not None
    assert len(result.solution.steps) == 3


def test_bad_starts_are_named() -> None:
    with pytest.raises(PlannerError, match="device 0 holds 5 of 4 bytes now"):
        Moves((4.0,), (2.0, 3.0), (1.0, 1.0), ((0,), (0,)))
    with pytest.raises(PlannerError, match="model 0 is on devices"):
        Moves((4.0,), (2.0,), (1.0,), ((1,),))
    with pytest.raises(PlannerError, match="model 0 of 2 bytes is on devices"):
        Moves((4.0,), (2.0,), (1.0,), ((),))
    assert list(itertools.islice(Moves((4.0,), (2.0,), (1.0,), ((0,),)).free(((0,),)), 1)) == [2.0]
