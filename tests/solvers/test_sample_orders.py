"""Orders of micro-batches against all orders, judged by 1F1B written anew; the bound; bad input."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from planner.errors import PlannerError
from planner.solvers.modalities.sample_orders import SampleOrders, best_orders, longest_span_s, work_bound_s
from planner.solvers.result import Status


def random_orders(seed: int, replicas: int, each: int) -> SampleOrders:
    draws = np.random.default_rng(seed)
    ranks = int(draws.integers(1, 5))
    forward = draws.uniform(0.1, 1.0, (replicas * each, ranks)) ** 2
    return SampleOrders(forward, forward * draws.uniform(1.5, 2.5, forward.shape), replicas)


def span(problem: SampleOrders, order: Sequence[int]) -> float:
    """1F1B by its passes: rank r runs so many forward passes ahead as ranks are behind it."""
    ranks, number = problem.forward_NR.shape[1], len(order)
    rows = []
    for rank in range(ranks):
        ahead = min(ranks - 1 - rank, number)
        row = [("F", place) for place in range(ahead)]
        for place in range(number):
            row += [("F", place + ahead)] if place + ahead < number else []
            row.append(("B", place))
        rows.append(row)
    ended: dict[tuple[str, int, int], float] = {}
    free, waiting = [0.0] * ranks, [list(row) for row in rows]
    while any(waiting):
        for rank in range(ranks):
            while waiting[rank]:
                kind, place = waiting[rank][0]
                if kind == "F":
                    needs = ("F", place, rank - 1) if rank else None
                else:
                    needs = ("B", place, rank + 1) if rank < ranks - 1 else ("F", place, rank)
                if needs is not None and needs not in ended:
                    break
                table = problem.forward_NR if kind == "F" else problem.backward_NR
                ready = 0.0 if needs is None else ended[needs]
                free[rank] = max(free[rank], ready) + table[order[place], rank]
                ended[kind, place, rank] = free[rank]
                waiting[rank].pop(0)
    return max(free)


def least(problem: SampleOrders) -> float:
    """Of all assignments and orders."""
    number, each = len(problem.forward_NR), problem.each
    best_of = {
        own: min(span(problem, order) for order in itertools.permutations(own))
        for own in itertools.combinations(range(number), each)
    }

    def cover(left: frozenset[int]) -> float:
        if not left:
            return 0.0
        first = min(left)
        own = [(first, *more) for more in itertools.combinations(sorted(left - {first}), each - 1)]
        return min(max(best_of[subset], cover(left - set(subset))) for subset in own)

    return cover(frozenset(range(number)))


@pytest.mark.parametrize(("replicas", "each", "seeds"), [(1, 4, 40), (2, 3, 40), (3, 2, 20)])
def test_the_best_orders_are_those_of_all_orders(replicas: int, each: int, seeds: int) -> None:
    for seed in range(seeds):
        problem = random_orders(seed, replicas, each)
        result = best_orders(problem, starts=1)
        assert result.status is Status.OPTIMAL
        assert result.solution is not None
        assert sorted(n for order in result.solution for n in order) == list(range(replicas * each))
        assert result.objective == pytest.approx(least(problem), rel=1e-9)
        assert max(span(problem, order) for order in result.solution) == pytest.approx(result.objective, rel=1e-12)


def test_no_orders_are_below_the_bound_and_exchanges_come_near_it() -> None:
    for seed in range(4):
        problem = random_orders(seed, 4, 6)
        result = best_orders(problem, starts=2)
        assert result.bound is not None
        assert result.objective is not None
        draws = np.random.default_rng(seed)
        tried = [tuple(map(tuple, draws.permutation(24).reshape(4, 6).tolist())) for _ in range(50)]
        assert all(longest_span_s(problem, orders) >= result.bound for orders in tried)
        assert work_bound_s(problem) <= result.objective <= min(longest_span_s(problem, orders) for orders in tried)


def test_bad_input_is_refused() -> None:
    table = np.ones((5, 2))
    with pytest.raises(PlannerError, match="nearest number that works is 4"):
        SampleOrders(table, table, 2)
    with pytest.raises(PlannerError, match="no table"):
        SampleOrders(table, table[:4], 1)
    with pytest.raises(PlannerError, match="less than no time"):
        SampleOrders(-table, table, 1)
