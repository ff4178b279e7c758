"""Functions and groups of stages on servers against every grouping, packing and number of functions; bad input."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from planner.errors import PlannerError
from planner.solvers.result import Status
from planner.solvers.workflow.server_groups import EVERY, GraphStage, Grouped, ServerGroups, Work, group_stages
from planner.solvers.workflow.server_groups import longest_path_s as priced_s


def random_problem(seed: int) -> ServerGroups:
    draws = np.random.default_rng(seed)
    count = int(draws.integers(1, 5))
    stages = []
    for stage in range(count):
        parents = tuple(p for p in range(stage) if draws.random() < 0.6)
        base, reads, writes = draws.integers(1, 40, 3), draws.integers(0, 60, 3), draws.integers(0, 60, 3)
        work = {
            (r, w): Work(
                float(base[0] + reads[0] / (10 if r else 1) + writes[0] / (10 if w else 1)),
                float(base[1] + reads[1] / (10 if r else 1) + writes[1] / (10 if w else 1)),
            )
            for r, w in EVERY
        }
        stages.append(GraphStage(parents, work, splits=bool(draws.random() < 0.8)))
    slots = tuple(int(v) for v in draws.integers(1, 4, int(draws.integers(1, 3))))
    while sum(slots) < count:
        slots = (*slots, int(draws.integers(1, 3)))
    return ServerGroups(tuple(stages), slots, int(draws.integers(1, 4)))


def connected(problem: ServerGroups, group: tuple[int, ...]) -> bool:
    edges = {(a, b) for b in group for a in problem.stages[b].parents if a in group}
    reach = {group[0]}
    for _ in group:
        reach |= {b for a, b in edges if a in reach} | {a for a, b in edges if b in reach}
    return reach == set(group)


def partitions(stages: list[int]) -> Iterator[list[tuple[int, ...]]]:
    if not stages:
        yield []
        return
    for size in range(len(stages)):
        for others in itertools.combinations(stages[1:], size):
            rest = [stage for stage in stages[1:] if stage not in others]
            for more in partitions(rest):
                yield [(stages[0], *others), *more]


def path_s(problem: ServerGroups, groups: list[tuple[int, ...]], functions: tuple[int, ...]) -> float:
    """The longest path, by its definition."""
    of = {s: g for g, group in enumerate(groups) for s in group}
    ends: list[float] = []
    for s, stage in enumerate(problem.stages):
        children = [c for c, other in enumerate(problem.stages) if s in other.parents]
        reads = bool(stage.parents) and all(of[p] == of[s] for p in stage.parents)
        writes = bool(children) and all(of[c] == of[s] for c in children)
        work = stage.work[reads, writes]
        ends.append(max([ends[p] for p in stage.parents], default=0.0) + work.split_s / functions[s] + work.whole_s)
    return max(ends)


def fits(problem: ServerGroups, sizes: list[int]) -> bool:
    for servers in itertools.product(range(len(problem.slots_V)), repeat=len(sizes)):
        used = [
            sum(n for n, v in zip(sizes, servers, strict=True) if v == server) for server in range(len(problem.slots_V))
        ]
        if all(n <= slots for n, slots in zip(used, problem.slots_V, strict=True)):
            return True
    return False


def least_s(problem: ServerGroups) -> float:
    """Over all partitions into linked groups (a stage of its own needs no server of its own), functions and servers."""
    best = float("inf")
    choices = [range(1, problem.slots + 1) if stage.splits else (1,) for stage in problem.stages]
    for groups in partitions(list(range(len(problem.stages)))):
        if any(len(g) > max(problem.most_members, 1) or not connected(problem, g) for g in groups):
            continue
        for functions in itertools.product(*choices):
            if sum(functions) > problem.slots:
                continue
            value = path_s(problem, groups, functions)
            if value < best and fits(problem, [sum(functions[s] for s in g) for g in groups if len(g) > 1]):
                best = value
    return best


@pytest.mark.parametrize("seed", range(100))
def test_no_grouping_has_a_shorter_path(seed: int) -> None:
    problem = random_problem(seed)
    result = group_stages(problem)
    assert result.status is Status.OPTIMAL
    assert result.solution is not None
    assert result.objective == pytest.approx(least_s(problem), rel=3e-6)
    assert result.bound is not None
    assert result.objective is not None
    assert result.bound <= result.objective
    _legal(problem, result.solution)


def _legal(problem: ServerGroups, answer: Grouped) -> None:
    sizes = [sum(answer.functions_S[s] for s in group) for group in answer.groups]
    for server, slots in enumerate(problem.slots_V):
        assert sum(n for n, v in zip(sizes, answer.server_G, strict=True) if v == server) <= slots
    assert sum(answer.functions_S) <= problem.slots
    assert all(connected(problem, group) and len(group) <= problem.most_members for group in answer.groups)
    alone = [(s,) for s in range(len(problem.stages)) if not any(s in group for group in answer.groups)]
    assert priced_s(problem, answer) == pytest.approx(path_s(problem, [*answer.groups, *alone], answer.functions_S))


def test_stages_without_room_and_orders_that_are_none_are_refused() -> None:
    work = dict.fromkeys(EVERY, Work(1.0, 1.0))
    for stages, slots, what in (
        ((GraphStage((), work),) * 3, (1, 1), "3 stages and 2 slots"),
        ((GraphStage((0,), work),), (4,), "waits for 0"),
        ((GraphStage((), {(False, False): Work(1.0, 1.0)}),), (4,), "not given for each nearness"),
    ):
        with pytest.raises(PlannerError, match=what):
            ServerGroups(stages, slots, 3)
