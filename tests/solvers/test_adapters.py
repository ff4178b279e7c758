"""Adapters on engines against all placements, each with a linear program of its own; bad input."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from planner.errors import PlannerError
from planner.solvers.placement.adapters import AdapterPlacement, Adapters, Engine, Request, place_adapters
from planner.solvers.result import Status


def random_problem(seed: int, *, adapters: int = 2, requests: int = 4, merged: float | None = None) -> Adapters:
    draws = np.random.default_rng(seed)
    engines = tuple(Engine(int(draws.integers(1, adapters + 1)), float(draws.integers(10, 60))) for _ in range(2))
    rows = tuple(
        Request(
            int(draws.integers(adapters)), int(draws.integers(2)), float(draws.integers(5, 40)), float(draws.random())
        )
        for _ in range(requests)
    )
    return Adapters(adapters, engines, rows, 0.05, 50.0, merged)


def done_s(problem: Adapters, placement: AdapterPlacement) -> float:
    """When the last engine is done, from the definition."""
    last_s = 0.0
    for j, engine in enumerate(problem.engines):
        factor = problem.merged if placement.merged[j] is not None and problem.merged else 1.0
        work_s = sum(
            share[j] * (factor * request.exec_s + (problem.migration_s if request.engine != j else 0.0))
            for request, share in zip(problem.requests, placement.shares, strict=True)
        )
        blocks = sum(r.blocks * share[j] for r, share in zip(problem.requests, placement.shares, strict=True))
        last_s = max(last_s, work_s + max(0.0, blocks - engine.blocks) / problem.blocks_per_s)
    return last_s


def least_s(problem: Adapters) -> float:
    """Over every placement of adapters and every way to merge, the optimum of the shares by scipy."""
    engines, best = len(problem.engines), math.inf
    rows = itertools.product((False, True), repeat=problem.adapters * engines)
    for flat in rows:
        hosts = [flat[k * engines : (k + 1) * engines] for k in range(problem.adapters)]
        if any(sum(row[j] for row in hosts) > e.adapters for j, e in enumerate(problem.engines)):
            continue
        choices = [[None, *(k for k in range(problem.adapters) if hosts[k][j])] for j in range(engines)]
        for merged in itertools.product(*choices) if problem.merged is not None else [(None,) * engines]:
            best = min(best, _shares_s(problem, hosts, merged))
    return best


def _shares_s(problem: Adapters, hosts: list[tuple[bool, ...]], merged: tuple[int | None, ...]) -> float:
    engines, count = len(problem.engines), len(problem.requests)
    columns = count * engines + engines + 1
    upper = np.zeros(columns)
    upper[count * engines :] = np.inf
    rows, right, equal = [], [], np.zeros((count, columns))
    for r, request in enumerate(problem.requests):
        equal[r, r * engines : (r + 1) * engines] = 1.0
        for j in range(engines):
            there = hosts[request.adapter][j] and merged[j] in (None, request.adapter)
            upper[r * engines + j] = 1.0 if there else 0.0
    for j, engine in enumerate(problem.engines):
        swap, work = np.zeros(columns), np.zeros(columns)
        swap[count * engines + j] = -problem.blocks_per_s
        work[count * engines + j], work[-1] = 1.0, -1.0
        for r, request in enumerate(problem.requests):
            swap[r * engines + j] = request.blocks
            factor = 1.0 if merged[j] is None or problem.merged is None else problem.merged
            work[r * engines + j] = factor * request.exec_s + problem.migration_s * (request.engine != j)
        rows += [swap, work]
        right += [engine.blocks, 0.0]
    cost = np.zeros(columns)
    cost[-1] = 1.0
    outcome = linprog(
        cost, np.array(rows), right, equal, np.ones(count), list(zip(np.zeros(columns), upper, strict=True))
    )
    return float(outcome.fun or 0.0) if outcome.status == 0 else math.inf


@pytest.mark.parametrize("seed", range(100))
def test_the_placement_is_the_best_of_all(seed: int) -> None:
    try:
        problem = random_problem(seed)
    except PlannerError:
        return  # engines hold too few adapters, which is refused
    result = place_adapters(problem)
    assert result.status is Status.OPTIMAL
    assert result.solution is not None
    assert done_s(problem, result.solution) == pytest.approx(result.objective, abs=1e-6)
    assert result.objective == pytest.approx(least_s(problem), abs=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_merged_engines_serve_one_adapter_and_are_chosen_where_that_is_best(seed: int) -> None:
    try:
        problem = random_problem(500 + seed, merged=0.6)
    except PlannerError:
        return
    result = place_adapters(problem)
    assert result.solution is not None
    for j, adapter in enumerate(result.solution.merged):
        if adapter is not None:
            served = {r.adapter for r, s in zip(problem.requests, result.solution.shares, strict=True) if s[j] > 1e-6}
            assert served <= {adapter}
    assert result.objective == pytest.approx(least_s(problem), abs=1e-6)


@settings(max_examples=10, deadline=None)
@given(st.integers(1_000, 2_000))
def test_room_for_another_adapter_never_hurts(seed: int) -> None:
    draws = np.random.default_rng(seed)
    requests = tuple(
        Request(int(draws.integers(3)), int(draws.integers(2)), 20.0, float(draws.random())) for _ in range(6)
    )
    times = [
        place_adapters(Adapters(3, (Engine(room, 60.0), Engine(2, 60.0)), requests, 0.05, 50.0)).objective
        for room in (1, 2, 3)
    ]
    assert None not in times
    assert all(a is not None and b is not None and b <= a + 1e-6 for a, b in itertools.pairwise(times))


def test_bad_figures_are_named() -> None:
    request = Request(0, 0, 5.0, 0.1)
    with pytest.raises(PlannerError, match="requests are of 2 adapters, and all engines together hold 1"):
        Adapters(2, (Engine(1, 10.0),), (request, Request(1, 0, 5.0, 0.1)), 0.05, 50.0)
    with pytest.raises(PlannerError, match="request 0 is of adapter 3 on engine 0"):
        Adapters(2, (Engine(1, 10.0),), (Request(3, 0, 5.0, 0.1),), 0.05, 50.0)
    with pytest.raises(PlannerError, match="0 blocks a second"):
        Adapters(1, (Engine(1, 10.0),), (request,), 0.05, 0.0)
