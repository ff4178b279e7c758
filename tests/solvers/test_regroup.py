"""Orders of moves between copies on sets of devices: against all reachable sets of copies, and bad placements."""

import itertools
from collections import Counter, defaultdict, deque

import numpy as np
import pytest
from regroup_oracle import broken_by

from planner.errors import PlannerError
from planner.solvers.placement.regroup import Copy, Regroup, Step, order_moves
from planner.solvers.result import Status

A, B, C = ("p", 0), ("p", 1), ("p", 2)
PLACES = ((A,), (B,), (C,), (A, B))


def problem_of(seed: int) -> Regroup | None:
    """Two or three models on up to three devices; None where a placement does not fit."""
    draws = np.random.default_rng(seed)
    size = {model: float(draws.integers(1, 4)) for model in "xyz"}

    def copies() -> frozenset[Copy]:
        return frozenset(
            Copy(model, place, size[model] / len(place), size[model])
            for model in "xyz"[: 2 + seed % 2]
            for place in [PLACES[int(draws.integers(len(PLACES)))]]
        )

    try:
        return Regroup(float(draws.integers(4, 6)), copies(), copies())
    except PlannerError:
        return None


def fewest_bytes(problem: Regroup) -> float | None:
    """Over all sets of copies that can be reached, every way of a model on every place of its sizes among them."""
    every = {
        Copy(copy.model, place, copy.taken_bytes, copy.brought_bytes)
        for copy in problem.now | problem.target
        for place in {each.devices for each in problem.now | problem.target}
        if len(place) == len(copy.devices)
    }
    now, then = (Counter(copy.model for copy in copies) for copies in (problem.now, problem.target))
    best = {problem.now: 0.0}
    queue = deque([problem.now])
    while queue:
        state = queue.popleft()
        for copy in every | state:
            after = state ^ {copy}
            counts = Counter(each.model for each in after)
            load = defaultdict[object, float](float)
            for each in after:
                for device in each.devices:
                    load[device] += each.taken_bytes
            kept = all(counts[model] >= min(now[model], then[model]) for model in "xyz")
            if not kept or any(taken > problem.memory_bytes + 1e-9 for taken in load.values()):
                continue
            cost = best[state] + (copy.brought_bytes if copy in after else 0.0)
            if cost < best.get(after, np.inf) - 1e-9:
                best[after] = cost
                queue.append(after)
    return best.get(problem.target)


def test_orders_bring_as_few_bytes_as_any_way_through_all_placements() -> None:
    problems = [problem for problem in map(problem_of, range(200)) if problem is not None][:100]
    assert len(problems) == 100
    staged = 0
    for problem in problems:
        result, least = order_moves(problem), fewest_bytes(problem)
        if least is None:
            assert result.status is Status.INFEASIBLE
            continue
        assert result.solution is not None
        assert result.objective == pytest.approx(least)
        assert broken_by(problem, result.solution) is None
        staged += least > problem.missing_bytes + 1e-9
    assert staged  # some need a copy on a third device


def test_two_models_that_change_places_pass_through_a_third_device() -> None:
    def on(model: str, device: int) -> Copy:
        return Copy(model, (("p", device),), 6.0, 6.0)

    spare = Copy("z", (C,), 1.0, 1.0)
    problem = Regroup(10.0, frozenset({on("x", 0), on("y", 1), spare}), frozenset({on("x", 1), on("y", 0), spare}))
    result = order_moves(problem)
    assert result.objective == 18.0  # one of them goes twice
    assert result.solution is not None
    for number in range(len(result.solution)):
        assert broken_by(problem, result.solution[:number]) is not None
    wrong = (Step(on("x", 0), brought=False), *result.solution)
    assert "leaves `x` with 0 of 1 copies" in (broken_by(problem, wrong) or "")
    full = (Step(on("x", 1), brought=True),)
    assert "leaves device 1 of `p` with more" in (broken_by(problem, full) or "")


def test_a_full_pair_without_a_third_device_has_no_order() -> None:
    pairs = [frozenset({Copy("x", (a,), 6.0, 6.0), Copy("y", (b,), 6.0, 6.0)}) for a, b in ((A, B), (B, A))]
    assert order_moves(Regroup(10.0, *pairs)).status is Status.INFEASIBLE


def test_placements_that_do_not_fit_are_named() -> None:
    large = frozenset(Copy(model, (A,), 6.0, 6.0) for model in "xy")
    with pytest.raises(PlannerError, match="device 0 of `p` holds 12 of 10 bytes now"):
        Regroup(10.0, large, frozenset(itertools.islice(large, 1)))
