"""Batches on engines against all batches in all orders; the bound; bad input."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.solvers.result import Status
from planner.solvers.workflow.engine_batches import (
    Batch,
    EngineBatches,
    Primitive,
    PrimitiveType,
    by_depth,
    ends_at_least_s,
    least_mean_latency,
)

Op = tuple[int, int]


def random_problem(seed: int) -> EngineBatches:
    draws = np.random.default_rng(seed)
    queries, count = (2, int(draws.integers(1, 4))) if draws.random() < 0.7 else (3, int(draws.integers(1, 3)))
    types = tuple(
        PrimitiveType(
            int(draws.integers(2)), float(draws.integers(0, 6)), float(draws.integers(1, 6)), int(draws.integers(1, 4))
        )
        for _ in range(2)
    )
    nodes = tuple(
        Primitive(int(draws.integers(2)), tuple(p for p in range(n) if draws.random() < 0.6)) for n in range(count)
    )
    return EngineBatches(nodes, types, tuple(float(r) for r in draws.integers(0, 12, queries)))


def into_batches(ops: list[Op], most: int) -> Iterator[list[tuple[Op, ...]]]:
    if not ops:
        yield []
        return
    for size in range(min(most, len(ops))):
        for others in itertools.combinations(ops[1:], size):
            rest = [op for op in ops[1:] if op not in others]
            for more in into_batches(rest, most):
                yield [(ops[0], *others), *more]


def latency_s(problem: EngineBatches, orders: list[list[tuple[Op, ...]]]) -> float | None:
    """Mean latency, batches as early as their engine's order lets them be; None where they wait for each other."""
    ends: dict[Op, float] = {}
    free_s = [0.0] * len(orders)
    todo = [list(order) for order in orders]
    moved = True
    while moved:
        moved = False
        for engine, order in enumerate(todo):
            if not order or any((q, p) not in ends for q, n in order[0] for p in problem.nodes[n].parents):
                continue
            batch = order.pop(0)
            ready_s = [problem.release_s_Q[q] for q, _ in batch]
            ready_s += [ends[q, p] for q, n in batch for p in problem.nodes[n].parents]
            kind = problem.types[problem.nodes[batch[0][1]].type]
            free_s[engine] = max(free_s[engine], *ready_s) + kind.setup_s + kind.each_s * len(batch)
            ends.update(dict.fromkeys(batch, free_s[engine]))
            moved = True
    if any(todo):
        return None
    last = [max(ends[q, n] for n in range(len(problem.nodes))) for q in range(len(problem.release_s_Q))]
    return sum(last) / len(last) - sum(problem.release_s_Q) / len(last)


def least_s(problem: EngineBatches) -> float:
    every = [(q, n) for q in range(len(problem.release_s_Q)) for n in range(len(problem.nodes))]
    kinds = range(len(problem.types))
    by_kind = [[op for op in every if problem.nodes[op[1]].type == kind] for kind in kinds]
    cuts = [list(into_batches(ops, problem.types[kind].most_members)) for kind, ops in zip(kinds, by_kind, strict=True)]
    best = float("inf")
    for cut in itertools.product(*cuts):
        on = [[b for kind in kinds if problem.types[kind].engine == engine for b in cut[kind]] for engine in range(2)]
        for orders in itertools.product(*(itertools.permutations(batches) for batches in on)):
            value = latency_s(problem, [list(order) for order in orders])
            best = min(best, value if value is not None else best)
    return best


def require_legal(problem: EngineBatches, batches: tuple[Batch, ...]) -> None:
    spans: dict[int, list[tuple[float, float]]] = {}
    end_s = {}
    for batch in batches:
        kind = problem.types[batch.type]
        assert len(batch.members) <= kind.most_members
        assert {problem.nodes[n].type for _, n in batch.members} == {batch.type}
        end = batch.start_s + kind.setup_s + kind.each_s * len(batch.members)
        spans.setdefault(kind.engine, []).append((batch.start_s, end))
        end_s.update(dict.fromkeys(batch.members, end))
    for batch in batches:
        for query, node in batch.members:
            ready = [problem.release_s_Q[query], *(end_s[query, parent] for parent in problem.nodes[node].parents)]
            assert batch.start_s >= max(ready) - 1e-9
    for rows in spans.values():
        rows.sort()
        assert all(end <= start + 1e-9 for (_, end), (start, _) in itertools.pairwise(rows))


@pytest.mark.parametrize("seed", range(100))
def test_no_batches_in_any_order_have_a_lower_mean_latency(seed: int) -> None:
    problem = random_problem(seed)
    result = least_mean_latency(problem)
    assert result.status is Status.OPTIMAL
    assert result.solution is not None
    require_legal(problem, result.solution)
    least = least_s(problem)
    assert result.objective == pytest.approx(least, abs=1e-9)
    queries = len(problem.release_s_Q)
    assert (sum(ends_at_least_s(problem)) - sum(problem.release_s_Q)) / queries <= least + 1e-9


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_batches_by_depth_are_legal_and_no_better_than_the_bound(seed: int) -> None:
    problem = random_problem(seed)
    batches = by_depth(problem)
    require_legal(problem, batches)
    assert sorted(op for batch in batches for op in batch.members) == [
        (q, n) for q in range(len(problem.release_s_Q)) for n in range(len(problem.nodes))
    ]


def test_graphs_and_types_that_cannot_be_are_refused() -> None:
    kind = PrimitiveType(0, 1.0, 1.0, 2)
    for nodes, types, release, what in (
        ((), (kind,), (0.0,), "no primitive"),
        ((Primitive(0, ()),), (kind,), (), "no query"),
        ((Primitive(0, (0,)),), (kind,), (0.0,), "waits for 0"),
        ((Primitive(1, ()),), (kind,), (0.0,), "type 1"),
        ((Primitive(0, ()),), (PrimitiveType(0, 1.0, 1.0, 0),), (0.0,), "hold 0"),
        ((Primitive(0, ()),), (PrimitiveType(0, 0.0, 0.0, 1),), (0.0,), "take 0 s"),
    ):
        with pytest.raises(PlannerError, match=what):
            EngineBatches(nodes, types, release)
