"""Instance mixes that carry their load with instances lost: against brute force, and what a spare one must cost."""

import dataclasses
import itertools
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mix_oracle import brute_force_mix, survives_nodes
from mix_problems import random_problem, scattered_problem, waiting_problem

from planner.solvers.backends.model import check_feasible
from planner.solvers.mix import MixDemand, MixObjective, MixPool, MixProblem, MixRole, MixShape
from planner.solvers.mix_data import point_of, problem_from_dict, problem_to_dict
from planner.solvers.mix_lost import busy_after
from planner.solvers.mix_model import build
from planner.solvers.mix_solve import certify, reduce, solve_mix, used_shapes
from planner.solvers.result import Status
from planner.verify import Mix


def with_spare(problem: MixProblem, lost: int = 1, spread: int | None = None) -> MixProblem:
    shapes = tuple(dataclasses.replace(shape, lost=lost, spread=spread) for shape in problem.shapes)
    return dataclasses.replace(problem, shapes=shapes)


SMALL = [
    *(with_spare(random_problem(seed)) for seed in range(6)),
    *(with_spare(random_problem(seed, num_shapes=4, num_pools=2)) for seed in range(20, 22)),
    *(with_spare(random_problem(seed, num_shapes=3, num_demands=2, roles=(MixRole.WHOLE,))) for seed in range(30, 33)),
    *(with_spare(waiting_problem(seed, num_shapes=4)) for seed in range(40, 44)),
    *(with_spare(scattered_problem(seed)) for seed in range(70, 71)),
]


def test_mixes_with_spare_instances_are_those_of_brute_force_and_proven() -> None:
    optima = [brute_force_mix(problem) for problem in SMALL]
    assert sum(optimum is not None and optimum > 0.0 for optimum in optima) > len(SMALL) / 3
    for problem, optimum in zip(SMALL, optima, strict=True):
        result = solve_mix(problem)
        bound = certify(problem, result).bound()
        if optimum is None:
            assert result.status is Status.INFEASIBLE
            assert bound is None
            continue
        assert result.status is Status.OPTIMAL
        assert result.objective == pytest.approx(optimum, rel=1e-6, abs=1e-6)
        assert bound == pytest.approx(optimum, rel=1e-6, abs=1e-6)


def test_the_point_keeps_every_row_and_the_rest_is_busy_at_most_all_its_time() -> None:
    for problem in SMALL:
        solution = solve_mix(problem).solution
        if solution is None:
            continue
        reduced, kept, _ = reduce(problem, keep=used_shapes(solution))
        model, columns = build(reduced)
        assert not check_feasible(model, point_of(reduced, kept, model, columns, solution), 1e-6)
        for c, count in enumerate(solution.counts):
            if count:
                assert busy_after(problem, solution.counts, solution.load_per_s, {c: 1}) <= 1.0 + 1e-6
        if reduced.limits.min_instances or reduced.limits.max_instances or reduced.objective is MixObjective.VALUE:
            continue  # as no plan has
        read = Mix(*json.loads(json.dumps((problem_to_dict(reduced), model.to_dict())))).model
        assert list(read.columns) == model.names
        assert [row[0] for row in read.rows] == [row.name for row in model.rows]
        assert problem_from_dict(json.loads(json.dumps(problem_to_dict(problem)))).shapes == problem.shapes


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 4), st.floats(0.3, 3.0), st.floats(0.5, 9.0), st.sampled_from(MixObjective))
def test_one_shape_needs_one_instance_more(devices: int, rate: float, load: float, goal: MixObjective) -> None:
    shape = MixShape("a", MixRole.WHOLE, 0, devices, 1, (rate,), 2.0)
    asked = goal in (MixObjective.DEVICES, MixObjective.PRICE)
    demand = MixDemand("d", rate_per_s=load if asked else None)
    problem = MixProblem((shape,), (MixPool("pool", ((1, 60),)),), (demand,), goal)
    plain, spare = solve_mix(problem), solve_mix(with_spare(problem))
    if plain.solution is None or spare.solution is None:
        assert asked
        assert (60 // devices - 1) * rate < load * (1.0 + 1e-6)
        return
    more = spare.solution.counts[0] - plain.solution.counts[0]
    assert more == (1 if asked else 0)
    if not asked:
        assert spare.solution.served_per_s[0] == pytest.approx(plain.solution.served_per_s[0] - rate)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000))
def test_a_spare_instance_makes_no_mix_better_and_two_none_better_than_one(seed: int) -> None:
    problem = random_problem(seed, num_shapes=4)
    values = [solve_mix(each).objective for each in (problem, with_spare(problem), with_spare(problem, lost=2))]
    worst = float("-inf") if problem.maximising else float("inf")
    ranked = [worst if value is None else value for value in values]
    for better, worse in itertools.pairwise(ranked):
        assert (better >= worse - 1e-6) if problem.maximising else (better <= worse + 1e-6)


def test_nodes_that_fail_are_never_reckoned_worse_than_the_best_placement() -> None:
    met = 0
    for seed in range(12):
        draw = random.Random(seed)
        shapes = tuple(
            MixShape(f"s{c}", MixRole.WHOLE, 0, size, size, (size * draw.uniform(0.7, 1.2),))
            for c, size in enumerate((1, 2))
        )
        demand = MixDemand("d", rate_per_s=draw.uniform(0.8, 3.5))
        problem = MixProblem(shapes, (MixPool("pool", ((2, 3),)),), (demand,), MixObjective.DEVICES)
        truly = [
            small + 2 * large
            for small, large in itertools.product(range(7), range(4))
            if small + 2 * large <= 6 and survives_nodes(problem, (small, large))
        ]
        reckoned = solve_mix(with_spare(problem, spread=3)).objective
        assert reckoned is not None
        assert reckoned <= min(truly, default=7)
        met += reckoned == min(truly, default=7)
    assert met >= 9
