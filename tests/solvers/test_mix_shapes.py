"""Mixes of at most so many shapes: against brute force, proven, and read by the verifier."""

import dataclasses
import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mix_oracle import brute_force_mix
from mix_problems import random_problem, scattered_problem, waiting_problem

from planner.solvers.backends.model import check_feasible
from planner.solvers.mix import MixObjective, MixProblem, MixRole
from planner.solvers.mix_data import point_of, problem_from_dict, problem_to_dict
from planner.solvers.mix_model import build
from planner.solvers.mix_solve import certify, reduce, solve_mix, used_shapes
from planner.solvers.result import Status
from planner.verify import Mix

FREE = [
    *(random_problem(seed, num_shapes=4, num_demands=2, roles=(MixRole.WHOLE,)) for seed in (0, 2, 3, 5, 7, 8)),
    *(random_problem(seed, num_shapes=4, num_pools=2) for seed in (20, 21)),
    *(waiting_problem(seed, num_shapes=4) for seed in (40, 41)),
    *(scattered_problem(seed) for seed in (70, 71)),
]


def of_most(problem: MixProblem, shapes: int) -> MixProblem:
    return dataclasses.replace(problem, limits=dataclasses.replace(problem.limits, shapes=shapes))


@pytest.fixture(scope="module")
def limited() -> list[tuple[MixProblem, float | None]]:
    problems = [of_most(problem, shapes) for problem, shapes in itertools.product(FREE, (1, 2))]
    return [(problem, brute_force_mix(problem)) for problem in problems]


def test_mixes_of_few_shapes_are_those_of_brute_force_and_proven(
    limited: list[tuple[MixProblem, float | None]],
) -> None:
    for problem, optimum in limited:
        result = solve_mix(problem)
        bound = certify(problem, result).bound()
        if optimum is None:
            assert result.status is Status.INFEASIBLE
            assert bound is None
            continue
        assert result.solution is not None
        assert result.objective == pytest.approx(optimum, rel=1e-6, abs=1e-6)
        assert bound == pytest.approx(optimum, rel=1e-6, abs=1e-6)
        assert problem.limits.shapes is not None
        assert sum(count > 0 for count in result.solution.counts) <= problem.limits.shapes


def test_the_limit_binds_in_many_of_them(limited: list[tuple[MixProblem, float | None]]) -> None:
    free = [solve_mix(problem).objective for problem, _ in itertools.product(FREE, (1, 2))]
    held = [
        optimum != pytest.approx(most, rel=1e-6, abs=1e-6) for (_, optimum), most in zip(limited, free, strict=True)
    ]
    assert sum(held) >= 5


def test_the_point_keeps_every_row_and_the_verifier_builds_the_same_model(
    limited: list[tuple[MixProblem, float | None]],
) -> None:
    read = 0
    for problem, _ in limited:
        solution = solve_mix(problem).solution
        if solution is None:
            continue
        reduced, kept, _ = reduce(problem, keep=used_shapes(solution))
        model, columns = build(reduced)
        assert not check_feasible(model, point_of(reduced, kept, model, columns, solution), 1e-6)
        assert (
            problem_from_dict(json.loads(json.dumps(problem_to_dict(problem)))).limits.shapes == problem.limits.shapes
        )
        if reduced.limits.min_instances or reduced.limits.max_instances or reduced.objective is MixObjective.VALUE:
            continue  # as no plan has
        again = Mix(*json.loads(json.dumps((problem_to_dict(reduced), model.to_dict())))).model
        assert list(again.columns) == model.names
        assert [row[0] for row in again.rows] == [row.name for row in model.rows]
        read += 1
    assert read


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000))
def test_a_shape_more_makes_no_mix_worse_and_all_of_them_are_no_limit(seed: int) -> None:
    problem = random_problem(seed, num_shapes=4, num_demands=2)
    worst = float("-inf") if problem.maximising else float("inf")
    mixes = [*(of_most(problem, shapes) for shapes in (1, 2, 4)), problem]
    values = [result.objective for result in map(solve_mix, mixes)]
    *ranked, free = (worst if value is None else value for value in values)
    for fewer, more in itertools.pairwise(ranked):
        assert (fewer <= more + 1e-6) if problem.maximising else (fewer >= more - 1e-6)
    assert ranked[-1] == pytest.approx(free, rel=1e-6, abs=1e-6)
