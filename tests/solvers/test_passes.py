"""Schedules of passes against all orders of small pipelines; the bound; memory; bad input."""

import itertools
import math

import numpy as np
import pytest

from planner.errors import PlannerError
from planner.solvers.modalities.passes import Pass, PassProblem, best_schedule, schedule_s, work_bound_s
from planner.solvers.result import Status


def random_passes(seed: int, jobs: int = 2, ranks: int = 2) -> PassProblem:
    """Jobs that go forward over the ranks and back, the second after the first where it is drawn so."""
    draws = np.random.default_rng(seed)
    passes: list[Pass] = []
    index = {
        (job, d, rank): (job * 2 + d) * ranks + rank for job in range(jobs) for d in (0, 1) for rank in range(ranks)
    }
    sizes = draws.integers(1, 4, jobs)
    for job in range(jobs):
        for d in (0, 1):
            for rank in range(ranks):
                before = []
                if d == 0 and rank:
                    before.append(index[job, 0, rank - 1])
                if d == 1:
                    before.append(index[job, 1, rank + 1] if rank < ranks - 1 else index[job, 0, rank])
                    before.append(index[job, 0, rank])
                partner = index[job, 1, rank] if d == 0 else None
                held = float(sizes[job]) if d == 0 else 0.0
                passes.append(Pass(rank, float(draws.integers(1, 6)), tuple(before), partner, held, 2 * job + d))
    capacity = float(max(sizes) + draws.integers(0, 4))
    orders = tuple(tuple(index[job, d, rank] for job in range(jobs) for d in (0, 1)) for rank in range(ranks))
    return PassProblem(tuple(passes), (capacity,) * ranks, orders)


def least(problem: PassProblem) -> float:
    """Of all orders of all ranks that fit: simulated pass by pass."""
    own = [[i for i, each in enumerate(problem.passes) if each.rank == rank] for rank in range(2)]
    fitting = [[order for order in itertools.permutations(row) if fits(problem, order)] for row in own]
    return min((span(problem, orders) for orders in itertools.product(*fitting)), default=math.inf)


def fits(problem: PassProblem, order: tuple[int, ...]) -> bool:
    held = 0.0
    for at in order:
        each = problem.passes[at]
        held += each.held_bytes
        if held > problem.capacity_bytes[each.rank]:
            return False
        held -= sum(other.held_bytes for other in problem.passes if other.partner == at)
    return True


def span(problem: PassProblem, orders: tuple[tuple[int, ...], ...]) -> float:
    """When the last pass ends where every rank starts the next of its order once it and what is before it are done."""
    end: dict[int, float] = {}
    free, at = [0.0] * len(orders), [0] * len(orders)
    going = True
    while going:
        going = False
        for rank, order in enumerate(orders):
            while at[rank] < len(order) and all(e in end for e in problem.passes[order[at[rank]]].before):
                each = problem.passes[order[at[rank]]]
                free[rank] = end[order[at[rank]]] = max([free[rank], *(end[e] for e in each.before)]) + each.seconds
                at[rank] += 1
                going = True
    return max(end.values()) if len(end) == len(problem.passes) else math.inf


def test_the_best_schedule_is_that_of_all_orders() -> None:
    for seed in range(100):
        problem = random_passes(seed)
        result = best_schedule(problem, time_limit_s=300.0, starts=1)
        assert result.status is Status.OPTIMAL
        assert result.solution is not None
        assert result.objective is not None
        assert result.objective == pytest.approx(least(problem))
        assert schedule_s(problem, result.solution) == result.objective == pytest.approx(span(problem, result.solution))
        assert all(fits(problem, order) for order in result.solution)
        assert work_bound_s(problem) <= result.objective + 1e-9


def test_more_memory_never_makes_a_schedule_longer() -> None:
    for seed in range(8):
        problem = random_passes(seed, jobs=3)
        wide = PassProblem(problem.passes, (100.0, 100.0), problem.orders)
        before, after = (best_schedule(each, time_limit_s=300.0, starts=1).objective for each in (problem, wide))
        assert before is not None
        assert after is not None
        assert after <= before


def test_bad_input_is_refused_with_the_nearest_that_works() -> None:
    problem = random_passes(0)
    with pytest.raises(PlannerError, match="nearest capacity that works is"):
        PassProblem(problem.passes, (0.5, 0.5), problem.orders)
    with pytest.raises(PlannerError, match="no schedule that fits"):
        PassProblem(problem.passes, problem.capacity_bytes, tuple(order[::-1] for order in problem.orders))
    with pytest.raises(PlannerError, match="on no rank"):
        PassProblem((Pass(3, 1.0),), (1.0,), ((0,),))


def test_the_bound_of_two_ranks_is_no_schedule_above() -> None:
    """Of three ranks, of which the middle one is only a way between the others."""
    from planner.solvers.backends.cpsat_passes import bound_of_ranks

    tighter = 0
    for seed in range(25):
        problem = random_passes(seed, jobs=3, ranks=3)
        result = best_schedule(problem, time_limit_s=300.0, starts=1)
        assert result.status is Status.OPTIMAL
        assert result.objective is not None
        bound = bound_of_ranks(problem, 1e4, 0.0, 60.0)
        assert bound <= result.objective + 1e-9
        tighter += bound > work_bound_s(problem)
    assert tighter >= 5
