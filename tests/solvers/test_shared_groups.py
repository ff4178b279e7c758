"""Models that share groups: the first-come rule against its definition, bounds and searches against all placements."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.solvers.placement.all_groups import placements
from planner.solvers.placement.group_bounds import bound_on_time
from planner.solvers.placement.group_fillings import fill, partitions
from planner.solvers.placement.group_homes import homes
from planner.solvers.placement.group_search import Effort, search, share_on_time
from planner.solvers.placement.group_streams import Allowance, Group, Stream
from planner.solvers.placement.shared_groups import GroupShape, SharedGroups, late, lost, on_time
from planner.solvers.result import Status


def first_come(problem: SharedGroups, groups: Sequence[Group], stream: Stream) -> list[int]:
    """The rule as it is written: requests on time by model."""
    clocks = [[0.0] * problem.shapes[group.shape].stage_s_MK.shape[1] for group in groups]
    good = [0] * problem.models
    for time_s, model in zip(stream.time_s.tolist(), stream.model.tolist(), strict=True):
        hosts = [g for g, group in enumerate(groups) if model in group.models]
        if not hosts:
            continue
        chosen = min(hosts, key=lambda g: clocks[g][-1])
        now, ends = time_s, []
        for k, clock in enumerate(clocks[chosen]):
            now = max(now, clock) + float(problem.shapes[groups[chosen].shape].stage_s_MK[model, k])
            ends.append(now)
        if now - time_s <= problem.limit_s_M[model]:
            good[model] += 1
            clocks[chosen] = ends
    return good


def random_problem(draws: np.random.Generator, *, devices: int, models: int) -> SharedGroups:
    latency = draws.uniform(0.05, 0.3, models)
    shapes = []
    for size in (1, 2):
        for stages in {1, size}:
            cuts = draws.dirichlet(np.full(stages, 8.0), models) if stages > 1 else np.ones((models, 1))
            speed = 1.0 if stages == size else draws.uniform(1.1, 1.9)
            stage_s = latency[:, None] * cuts / speed * draws.uniform(1.0, 1.1)
            shapes.append(GroupShape(f"{size // stages}x{stages}", size, stage_s, np.full(models, 4.0 / size)))
    return SharedGroups(
        devices, devices, draws.choice([4.0, 8.0]), tuple(shapes), latency * draws.uniform(1.5, 4, models)
    )


def random_stream(draws: np.random.Generator, models: int, count: int, rate: float) -> Stream:
    times = np.cumsum(draws.gamma(0.25, 4.0 / rate, count))
    return Stream(times, draws.integers(0, models, count).astype(np.intp))


def enumerated(problem: SharedGroups) -> Iterator[tuple[Group, ...]]:
    """All groups and hosts that keep the constraints, with no device more than needed left out."""
    sizes = [shape.devices for shape in problem.shapes]
    for number in range(1, problem.devices + 1):
        for chosen in itertools.combinations_with_replacement(range(len(sizes)), number):
            if sum(sizes[c] for c in chosen) > problem.devices:
                continue
            subsets = [
                [hosts for k in range(problem.models + 1) for hosts in itertools.combinations(range(problem.models), k)]
                for _ in chosen
            ]
            for hosts in itertools.product(*subsets):
                groups = tuple(Group(c, h) for c, h in zip(chosen, hosts, strict=True))
                if problem.feasible(groups):
                    yield groups


@pytest.mark.parametrize("seed", range(40))
def test_simulation_is_the_first_come_rule(seed: int) -> None:
    draws = np.random.default_rng(seed)
    problem = random_problem(draws, devices=4, models=4)
    stream = random_stream(draws, 4, 120, 40.0)
    shapes = partitions(problem, int(draws.integers(len(problem.shapes))))
    groups = fill(problem, shapes, np.bincount(stream.model, minlength=4).astype(float))
    assert problem.feasible(groups)
    assert on_time(problem, groups, stream).tolist() == first_come(problem, groups, stream)


@pytest.mark.parametrize("seed", range(10))
def test_late_requests_beyond_those_of_their_model_weigh_more_than_all_others(seed: int) -> None:
    draws = np.random.default_rng(seed)
    problem = random_problem(draws, devices=3, models=3)
    streams = [random_stream(draws, 3, 60, 60.0) for _ in range(2)]
    groups = fill(problem, partitions(problem, int(draws.integers(len(problem.shapes)))), np.ones(3))
    asked = np.array([sum(int((stream.model == model).sum()) for stream in streams) for model in range(3)])
    late_M = asked - sum(np.array(first_come(problem, groups, stream)) for stream in streams)
    required = draws.uniform(0.3, 1.0, 3)
    beyond = np.maximum(late_M - np.floor((1.0 - required) * asked).astype(int), 0)
    weights = 120 * np.ceil(120 / asked).astype(int)
    expected = int(late_M.sum() + (weights * beyond).sum())
    allowance = Allowance.of(required, streams)
    assert lost(problem, groups, streams, allowance=allowance) == expected
    assert lost(problem, groups, streams, allowance=allowance) == expected  # which took nothing off it
    assert lost(problem, groups, streams) == late_M.sum()


def test_no_model_is_left_late_for_the_sake_of_more_requests_of_another() -> None:
    """Of three devices that hold a model each, two for model 1 have most on time where nothing is asked of model 0."""
    shape = GroupShape("1x1", 1, np.array([[0.5], [0.1]]), np.array([3.0, 3.0]))
    rare, frequent = np.arange(40) * 0.3, np.arange(240) * 0.05
    times, model = np.concatenate([rare, frequent]), np.repeat(np.array([0, 1], dtype=np.intp), [40, 240])
    order = np.argsort(times, kind="stable")
    stream = Stream(times[order], model[order])
    shares = []
    for required in (None, np.array([0.9, 0.5])):
        problem = SharedGroups(3, 3, 4.0, (shape,), np.array([0.6, 0.14]), required_M=required)
        groups = search(problem, np.array([0.1, 1.0]), [stream], [stream], Effort(20_000)).solution
        assert groups is not None
        shares.append((on_time(problem, groups, stream) / np.array([40, 240])).tolist())
    assert shares == [[0.5, 1.0], [1.0, 0.5]]


@pytest.mark.parametrize("seed", range(100))
def test_no_placement_is_better_than_the_bound(seed: int) -> None:
    """The oracle enumerates every placement of two devices and simulates each by the rule as it is written."""
    draws = np.random.default_rng(100 + seed)
    problem = random_problem(draws, devices=2, models=2)
    streams = [random_stream(draws, 2, 12, float(draws.uniform(5.0, 60.0))) for _ in range(2)]
    best = max(
        np.mean([sum(first_come(problem, groups, stream)) / len(stream) for stream in streams])
        for groups in enumerated(problem)
    )
    bound = bound_on_time(problem, streams)
    assert bound >= best - 1e-9
    result = search(problem, np.ones(2), streams, streams, Effort(4_000))
    assert result.solution is not None
    assert problem.feasible(result.solution)
    assert result.objective is not None
    assert result.objective <= best + 1e-9


def heavy_problem(seed: int, devices: int) -> SharedGroups:
    """Models of weights so different that some have no room beside each other, each to be on one group at least."""
    draws = np.random.default_rng(seed)
    problem = random_problem(draws, devices=devices, models=3)
    weight_M, whole = draws.uniform(1.0, 4.0, 3), draws.random() < 0.5
    shapes = tuple(
        replace(shape, weight_bytes_M=weight_M / (1 if whole else shape.devices)) for shape in problem.shapes
    )
    asked = draws.uniform(0.3, 0.95, 3)
    return replace(problem, shapes=shapes, memory_bytes=4.0, least_hosts=int(draws.integers(1, 3)), required_M=asked)


@pytest.mark.parametrize("seed", range(40))
def test_groups_that_hold_all_models_are_there_or_proven_not_to_be(seed: int) -> None:
    problem = heavy_problem(seed, devices=2 + seed % 2)
    every = {
        tuple(sorted((group for group in groups if group.models), key=str))
        for groups in enumerated(problem)
        if problem.hosted(groups)
    }
    listed = placements(problem)
    assert listed is not None
    assert {tuple(sorted(groups, key=str)) for groups in listed} == every
    assert len(listed) == len(every)
    held = homes(problem)
    assert held.status is (Status.OPTIMAL if every else Status.INFEASIBLE)
    if held.solution is not None:
        assert tuple(sorted(held.solution, key=str)) in every


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(["devices", "memory", "shares", "hosts"]))
def test_what_is_loosened_loses_no_placement_that_keeps_all_shares(seed: int, loosened: str) -> None:
    """Few placements are all simulated; on the requests that they are chosen and judged by, the best of them stays."""
    problem, draws = heavy_problem(seed, devices=2), np.random.default_rng(seed)
    stream = random_stream(draws, 3, 30, float(draws.uniform(3.0, 30.0)))
    looser = {
        "devices": replace(problem, devices=3, node_devices=2),
        "memory": replace(problem, memory_bytes=6.0),
        "shares": replace(problem, required_M=np.asarray(problem.required_M) * 0.8),
        "hosts": replace(problem, least_hosts=1),
    }[loosened]
    before, after = (missed(each, stream) for each in (problem, looser))
    assert after <= before


def missed(problem: SharedGroups, stream: Stream) -> int:
    """Whether some model has more late requests than it may under the groups of the search; 2 where these are none."""
    groups = search(problem, np.ones(3), [stream], [stream], Effort(1_000_000)).solution
    if groups is None:
        return 2
    count_M = np.bincount(stream.model, minlength=3)
    late_M = count_M - np.array(first_come(problem, groups, stream))
    allowed_M = np.floor((1.0 - np.asarray(problem.required_M)) * np.maximum(count_M, 1) + 1e-9)
    return int((late_M > allowed_M).any())


def test_models_that_a_shape_cannot_run_count_for_nothing_there() -> None:
    """A shape whose times of a model are missing (0 s, no room) is no faster for it."""
    alone = GroupShape("1x1", 1, np.array([[0.1], [0.0]]), np.array([1.0, np.inf]))
    pair = GroupShape("2x1", 2, np.array([[0.08], [0.2]]), np.array([1.0, 1.0]))
    problem = SharedGroups(2, 2, 4.0, (alone, pair), np.array([0.15, 0.25]))
    stream = Stream(np.zeros(4), np.array([0, 0, 1, 1], dtype=np.intp))
    best = max(sum(first_come(problem, groups, stream)) for groups in enumerated(problem)) / 4
    assert best == 0.5
    bound = bound_on_time(problem, [stream])
    assert best <= bound < 1.0
    assert problem.feasible(fill(problem, partitions(problem, 1), np.ones(2)))


def test_memory_lowers_the_bound_below_pooled_work() -> None:
    """Four models of which a device holds one: bursts of a model cannot use the other devices."""
    shape = GroupShape("1x1", 1, np.full((4, 1), 0.1), np.full(4, 3.0))
    burst = Stream(np.sort(np.repeat(np.arange(5.0) * 2.0, 20)), np.zeros(100, dtype=np.intp))
    roomy = SharedGroups(4, 4, 12.0, (shape,), np.full(4, 0.55))
    assert bound_on_time(roomy, [burst]) == pytest.approx(1.0)
    mixed = Stream(burst.time_s, np.tile(np.arange(4), 25).astype(np.intp))
    narrow = SharedGroups(4, 4, 3.0, (shape,), np.full(4, 0.55))
    assert bound_on_time(narrow, [mixed]) == pytest.approx(1.0)
    by_turns = Stream(burst.time_s, (np.arange(100) // 20 % 4).astype(np.intp))
    assert bound_on_time(narrow, [by_turns]) < 0.45  # five of twenty end in time on the only device of the model


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_a_model_that_nobody_asks_for_changes_nothing(seed: int) -> None:
    draws = np.random.default_rng(seed)
    problem = random_problem(draws, devices=3, models=3)
    stream = random_stream(draws, 2, 60, 50.0)
    groups = [Group(0, (0, 1)), Group(0, (0, 1))]
    marks = late(problem, groups, stream)
    asked_less = [Group(0, (0, 1, 2)), Group(0, (0, 1))]
    assert (late(problem, asked_less, stream) == marks).all()
    assert on_time(problem, groups, stream).sum() == len(stream) - marks.sum()
    assert share_on_time(problem, groups, [stream]) == pytest.approx(1.0 - marks.mean())


def test_a_model_that_fits_no_group_is_named() -> None:
    shape = GroupShape("1x1", 1, np.full((2, 1), 0.1), np.array([3.0, 9.0]))
    with pytest.raises(PlannerError, match="model 1 fits no group: it takes 9 bytes"):
        SharedGroups(2, 2, 4.0, (shape,), np.full(2, 0.5))
    with pytest.raises(PlannerError, match="0 devices"):
        SharedGroups(0, 2, 4.0, (shape,), np.full(2, 0.5))
