"""Engines that share groups in turns: the compiled rule against its definition, and the search that uses it."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from turns_simulator import Run

from planner.solvers.placement.batched_groups import Batches, choices, simulated
from planner.solvers.placement.group_fillings import fill, fillings, groups_apart
from planner.solvers.placement.group_search import Effort, search, share_on_time
from planner.solvers.placement.group_streams import Allowance, Group, Stream
from planner.solvers.placement.shared_groups import GroupShape, SharedGroups, lost


@dataclass(frozen=True)
class Tables:
    """Prices of engines from tables, as the problem states them."""

    batches: Batches
    groups: Sequence[Group]

    def most(self, model: int) -> int:
        return int(self.batches.most_M[model])

    def chunk(self, model: int) -> int:
        return int(self.batches.chunk_M[model])

    def room(self, model: int) -> int:
        return int(self.batches.room_M[model])

    def prefill_s(self, group: int, model: int, prompts: Sequence[int]) -> float:
        values = self.batches.prefill_s_CMT[self.groups[group].shape, model]
        return line(self.batches.prompt_T, values, sum(prompts))

    def decode_s(self, group: int, model: int, count: int, mean: float) -> float:
        return line(self.batches.context_X, self.batches.decode_s_CMBX[self.groups[group].shape, model, count], mean)


def line(axis: np.ndarray[tuple[int], np.dtype[np.float64]], values: Sequence[float], point: float) -> float:
    """Straight lines between the points of an axis, the outer ones going on."""
    high = 1
    while high < len(axis) - 1 and axis[high] < point:
        high += 1
    slope = (values[high] - values[high - 1]) / (axis[high] - axis[high - 1])
    return float(values[high - 1] + slope * (point - axis[high - 1]))


def instance(seed: int, models: int = 3) -> tuple[SharedGroups, Stream]:
    """Random engines with small caches on groups of one or two devices, and a bursty stream."""
    draws = np.random.default_rng(seed)
    contexts, tokens = np.array([1.0, 50.0, 400.0]), np.array([1.0, 100.0, 1000.0])
    base = draws.uniform(0.5, 2.0, (2, models, 1, 1)) * np.array([1.0, 0.6])[:, None, None, None]
    batch = np.arange(6.0)[None, None, :, None]
    decode = base * (0.01 + 0.002 * batch + 1e-5 * batch * contexts)
    prefill = base[..., 0] * (0.01 + 2e-4 * tokens)
    limits = np.stack([draws.uniform(0.1, 1.0, models), draws.uniform(0.02, 0.1, models), np.full(models, 5.0)], axis=1)
    batches = Batches(
        np.full(models, 5), np.full(models, 300), draws.integers(300, 800, models),
        decode, contexts, prefill, tokens, limits,
    )  # fmt: skip
    count = 120
    stream = Stream(
        np.cumsum(draws.gamma(0.25, 0.16, count)), draws.integers(0, models, count).astype(np.intp),
        draws.integers(1, 250, count), draws.integers(1, 60, count), first=10,
    )  # fmt: skip
    shapes = tuple(
        GroupShape(
            f"tp{size}", size, prefill[index, :, 1:2] + 20 * decode[index, :, 4, 1:2], np.full(models, 1.0 / size)
        )
        for index, size in enumerate((1, 2))
    )
    return SharedGroups(4, 4, 1.5, shapes, np.full(models, np.inf), batches), stream


@pytest.mark.parametrize("seed", range(40))
def test_the_compiled_rule_is_the_definition(seed: int) -> None:
    problem, stream = instance(seed)
    groups = fill(problem, [0, 1, 0] if seed % 2 else [1, 1], np.ones(3))
    assert problem.batches is not None
    outcomes = simulated(problem.batches, groups, stream)
    assert stream.prompt is not None
    assert stream.answer is not None
    models = [group.models for group in groups]
    run = Run(
        Tables(problem.batches, groups), models, stream.prompt.tolist(), stream.answer.tolist(), choices(len(stream))
    )
    run.run(stream.time_s.tolist(), stream.model.tolist())
    first, last = run.first, run.last
    np.testing.assert_allclose(outcomes.first_s_J, first, rtol=1e-12)
    np.testing.assert_allclose(outcomes.last_s_J, last, rtol=1e-12)
    late = 0
    for j in range(stream.first, len(stream)):
        ttft, tpot, latency = problem.batches.limit_s_M3[stream.model[j]]
        waited, took = first[j] - stream.time_s[j], last[j] - stream.time_s[j]
        gap = (last[j] - first[j]) / (stream.answer[j] - 1) if stream.answer[j] > 1 else 0.0
        late += not (waited <= ttft and gap <= tpot and took <= latency)
    assert outcomes.late == late
    assert share_on_time(problem, groups, [stream]) == pytest.approx(1.0 - late / stream.judged)


def test_the_search_is_no_worse_than_any_uniform_filling() -> None:
    problem, _ = instance(3)
    streams = [instance(seed)[1] for seed in range(4)]
    result = search(problem, np.ones(3), streams, streams, Effort(20_000))
    alike = [share_on_time(problem, fill(problem, [shape] * (4 // size), np.ones(3)), streams)
             for shape, size in ((0, 1), (1, 2))]  # fmt: skip
    assert result.objective is not None
    assert result.objective >= max(alike) - 1e-12


def _late(problem: SharedGroups, groups: tuple[Group, ...], streams: list[Stream], allowance: Allowance) -> int:
    """Late requests by their weights, of each model alone on the groups that are its own."""
    return sum(
        lost(problem, [group for group in groups if model in group.models], [stream.of(model) for stream in streams],
             allowance=allowance)
        for model in range(problem.models)
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
def test_no_numbers_of_groups_of_one_shape_a_model_have_fewer_late(seed: int) -> None:
    problem, stream = instance(seed)
    streams = [stream, instance(seed + 100)[1]]
    allowance = Allowance.of(np.array([0.9, 0.5, 0.7]), streams)
    groups = groups_apart(problem, streams, allowance)
    assert groups is not None
    assert problem.feasible(groups)
    assert all(len(group.models) == 1 for group in groups)
    every = itertools.product([(shape, number) for shape in (0, 1) for number in (1, 2, 3, 4)], repeat=problem.models)
    apart = [
        tuple(Group(shape, (model,)) for model, (shape, number) in enumerate(chosen) for _ in range(number))
        for chosen in every
        if sum((shape + 1) * number for shape, number in chosen) <= problem.devices
    ]
    assert _late(problem, groups, streams, allowance) == min(
        _late(problem, other, streams, allowance) for other in apart
    )


def test_searches_start_from_them() -> None:
    problem, stream = instance(1)
    alone = groups_apart(problem, [stream], Allowance.free(3))
    assert alone is not None
    assert fillings(problem, np.array([1.0, 1e-6, 1e-6]), [stream]).late[0] <= lost(problem, alone, [stream])


def test_there_are_none_where_models_outnumber_devices() -> None:
    problem, stream = instance(0, models=5)
    assert groups_apart(problem, [stream], Allowance.free(5)) is None
