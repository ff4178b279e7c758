"""Engines of every shape of a problem, each with the most of every axis: what no plan of its shape undercuts.

An engine may hold the largest batch of any of the points of its shape that fit in memory, take the largest chunk, and
has the cache that the smallest activations leave. Step times are those of one table of that batch and chunk.

Engines that share experts step together, and J(x) is what they do together for x tokens of the mean one. A step of one
of them with y tokens is charged h(y) of it, for any concave h <= J with h(0) >= 0 (`bounds.prices`): those that follow
J as far as it is concave up to one of some numbers of tokens, and go on in the straight line that J nowhere undercuts.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.arrays import Floats
from planner.costs.operators.forward import ranks_in_step
from planner.costs.operators.work import Shards
from planner.costs.serving.memory import kv_cache_bytes
from planner.engines.serving.registry import SERVING_ENGINES
from planner.kinds.serve.bounds.demands import Workload
from planner.kinds.serve.bounds.prices import Steps
from planner.kinds.serve.steady.engine_rules import handover_rule
from planner.kinds.serve.steady.points import PoolCosts, Tally, make_points
from planner.kinds.serve.steady.search import ServeSetting
from planner.kinds.serve.steady.shapes import InstanceShape
from planner.simulate.fleet.instances import Instance
from planner.simulate.fleet.step_grid import StepGrid, step_grids
from planner.simulate.goodput.step_prices import least_grid

EVERY = 7  # corners of the joint seconds, two a doubling: one at which a concave function below them turns straight
BETWEEN = 2  # parts of an interval between two batches of a table
CACHE_SLACK = 1.01  # of the tokens that a cache holds, whose bytes are those of the mean request
FUNCTIONS = {"colocated": ("colocated",), "disaggregated": ("prefill", "decode")}


@dataclass(frozen=True, slots=True)
class EngineType:
    """The engines of instances of one shape and function."""

    function: str
    model: str
    pool: int
    shape: InstanceShape
    instance: Instance  # one of its engines
    engines: int  # of an instance; a pipeline counts as many as it has stages
    own: StepGrid | None = None  # without what engines that step together do together, which it has apart

    @property
    def prefills(self) -> bool:
        return self.function != "decode"

    @property
    def decodes(self) -> bool:
        return self.function != "prefill"


@dataclass(frozen=True, slots=True, eq=False)
class ListedType:
    """Engines of a shape and function with the most of every axis, before their steps are priced."""

    function: str
    model: str
    pool_costs: PoolCosts
    shape: InstanceShape
    batch: int
    chunk: int
    room_bytes: float  # for caches
    lengths: Floats  # of requests, prompt and answer together
    shared: bool = False  # sequences may hold blocks together: no number of them fills the cache

    @property
    def engines(self) -> int:
        """Of an instance; a pipeline counts as many as it has stages."""
        return self.shape.dp * self.shape.pp

    def unpriced(self) -> EngineType:
        """With steps that take no time."""
        instance = Instance(
            StepGrid.affine(most_sequences=self.batch),
            1,
            role=self.function,
            token_budget=self.chunk,
            most_sequences=self.batch,
        )
        return EngineType(self.function, self.model, self.pool_costs.index, self.shape, instance, self.engines)

    def priced(self, setting: ServeSetting) -> EngineType:
        """With step times; of prompts alone no sequence decodes beside them, whose context could matter."""
        (grid,) = _grids([self], self.chunk, shortest_context=self.function == "prefill", joint_apart=self.joined)
        return self.with_steps(setting, grid)

    @property
    def members(self) -> int:
        """Engines that make their steps together."""
        return int(ranks_in_step(self.pool_costs.costs.arch, self.shape.dp))

    @property
    def joined(self) -> bool:
        """Whether it steps together with others."""
        return self.members > 1

    @property
    def axes(self) -> Hashable:
        """What types have alike whose tables have the same axes."""
        return self.function, self.model, self.pool_costs.index, self.batch, self.chunk, self.joined

    @property
    def shards(self) -> Shards:
        return Shards.of(*self.shape.all_degrees)

    @property
    def longest(self) -> int:
        return min(int(self.lengths.max()), self.pool_costs.costs.arch.max_context_tokens)

    def with_steps(self, setting: ServeSetting, own: StepGrid) -> EngineType:
        """With the steps of an engine alone, and seconds that no step undercuts where several step together."""
        grid = least_grid(own, self.members) if self.joined else own
        costs, shape, longest, shards = self.pool_costs.costs, self.shape, self.longest, self.shards
        mean = float(np.minimum(self.lengths, longest).mean())
        token_bytes = float(kv_cache_bytes(costs.arch, shards, np.array([mean]))[0]) / mean
        held_tokens = self.batch * longest if self.shared else int(self.room_bytes / token_bytes * CACHE_SLACK)
        instance = Instance(
            grid,
            max(held_tokens, 1),
            role=self.function,
            policy=SERVING_ENGINES[setting.resolved.problem.engine.name].policy,
            token_budget=self.chunk,
            most_sequences=self.batch,
            stages=shape.pp,
        )
        alone = own if self.joined else None
        return EngineType(self.function, self.model, self.pool_costs.index, shape, instance, self.engines, alone)


def least_types(setting: ServeSetting, listed: Sequence[ListedType]) -> list[EngineType]:
    """Types of the same axes with step times; of those that prefill and decode as short as where sequences have the
    shortest context: a table of a tenth of the size. As they are, where decode steps are not shortest there."""
    function, chunk = listed[0].function, listed[0].chunk
    shortest = function != "decode"
    grids = _grids(listed, chunk, shortest_context=shortest, joint_apart=listed[0].joined)
    falling = (
        [bool((np.diff(grid.decode_s, axis=1) < 0.0).any()) for grid in _grids(listed, 0)]
        if function == "colocated"
        else [False] * len(listed)
    )
    return [
        each.priced(setting) if falls else each.with_steps(setting, grid)
        for each, grid, falls in zip(listed, grids, falling, strict=True)
    ]


def _grids(
    listed: Sequence[ListedType], chunk_tokens: int, *, shortest_context: bool = False, joint_apart: bool = False
) -> list[StepGrid]:
    """The tables of types of the same axes."""
    first = listed[0]
    costs = first.pool_costs.costs.of_role(first.function)
    return step_grids(
        costs.arch,
        costs.pricer,
        Shards.joined([each.shards for each in listed]),
        costs.engine,
        most_sequences=first.batch,
        longest_tokens=first.longest,
        chunk_tokens=chunk_tokens,
        joint_apart=joint_apart,
        shortest_context=shortest_context,
    )


def engine_types(setting: ServeSetting, workloads: Sequence[Workload]) -> Iterator[EngineType]:
    """Every shape of every model on every pool in every function."""
    yield from (listed.priced(setting) for listed in listed_types(setting, workloads))


def listed_types(setting: ServeSetting, workloads: Sequence[Workload]) -> Iterator[ListedType]:
    """Every shape of every model on every pool in every function, without step times."""
    models = [workload.model for workload in setting.resolved.workloads]
    for (model, pool), pool_costs in setting.costs_of_pool.items():
        own = [index for index, name in enumerate(models) if name == model]
        functions = [function for mode in setting.options.modes for function in FUNCTIONS[mode]]
        for function in functions:
            shapes = [
                shape
                for shape in setting.spaces[model, pool].shapes
                if handover_rule(function, shape, pool_costs.costs.arch, setting.release) is None
            ]
            if shapes and own:
                yield from _of_function(setting, function, model, pool_costs, shapes, workloads, own)


def _of_function(
    setting: ServeSetting,
    function: str,
    model: str,
    pool_costs: PoolCosts,
    shapes: Sequence[InstanceShape],
    workloads: Sequence[Workload],
    own: Sequence[int],
) -> Iterator[ListedType]:
    targets = [setting.targets[index] for index in own]
    points = make_points(
        function, pool_costs, shapes, setting.options, targets, Tally(), copies=1, release=setting.release
    )
    lengths = np.concatenate([workloads[index].input_tokens + workloads[index].output_tokens for index in own])
    shared = any(workloads[index].computed_tokens is not None for index in own)
    for number, shape in enumerate(shapes):
        rows = np.flatnonzero(points.shape == number)
        if not len(rows):
            continue
        held = points.weight_bytes[rows] + points.activation_bytes[rows]
        room = pool_costs.memory_bytes - pool_costs.costs.engine.workspace_bytes - float(held.min())
        batch = int(points.batch[rows].max()) if function != "prefill" else 1
        chunk = int(points.chunk[rows].max()) if function != "decode" else 1
        yield ListedType(function, model, pool_costs, shape, batch, chunk, room, lengths, shared)


def steps_of(engine: EngineType, thresholds: Sequence[float]) -> Steps:
    """The corners of all steps that an engine of this type can make; `thresholds` are some of those of its contexts."""
    steps = _corners(engine, engine.instance.grid, thresholds)
    if engine.own is None:
        return steps
    own_s, tokens = _corners(engine, engine.own, ()).seconds, steps.loads[:, 0] + steps.loads[:, 2]
    below = [np.interp(tokens, engine.own.rank_tokens, floor) for floor in concave_floors(engine.own)]
    return replace(steps, shared=np.stack([steps.seconds, *(own_s + each for each in below)]))


def concave_floors(grid: StepGrid) -> list[Floats]:
    """Concave functions of tokens below the joint seconds of a table, at its `rank_tokens` [J], 0 at none.

    Each follows the joint seconds up to a corner, its slope never growing, and then is a straight line.
    """
    x, floor = grid.rank_tokens, np.minimum.accumulate(grid.joint_s[::-1])[::-1]
    floors, reached, slope = [], np.zeros(len(x)), np.inf
    for last in range(len(x) - 1):
        ahead = (floor[last + 1 :] - reached[last]) / (x[last + 1 :] - x[last])
        if last % EVERY == 0:
            floors.append(np.where(x > x[last], reached[last] + min(slope, ahead.min()) * (x - x[last]), reached))
        slope = min(slope, float(ahead[0]))
        reached[last + 1] = reached[last] + slope * (x[last + 1] - x[last])
    return floors


def _corners(engine: EngineType, grid: StepGrid, thresholds: Sequence[float]) -> Steps:
    """The corners of all steps with the times of a table."""
    parts = []
    if engine.decodes:
        parts.append(_decode_steps(engine.instance, grid, thresholds))
    if engine.prefills:
        parts.append(_prefill_steps(engine, grid, thresholds))
    seconds = np.concatenate([part.seconds for part in parts])
    return Steps(
        np.asfortranarray(np.concatenate([part.loads for part in parts])),
        seconds,
        np.concatenate([part.sequence_seconds for part in parts]),
        seconds[None, :],
    )


def _decode_steps(instance: Instance, grid: StepGrid, thresholds: Sequence[float]) -> Steps:
    """Steps that decode alone, of every batch."""
    counts = np.arange(1, instance.most_sequences + 1)
    context_NC = np.minimum(grid.contexts[None, :], instance.kv_tokens / counts[:, None])
    context_NC = np.maximum(context_NC, grid.contexts[0])
    seconds_NC = in_rows(grid.contexts, grid.decode_s[counts], context_NC)
    n, c = np.repeat(counts.astype(float), len(grid.contexts)), context_NC.ravel()
    none = np.zeros(len(n))
    return _steps(n, c, none, none, seconds_NC.ravel(), np.zeros(len(n)), thresholds)


def _prefill_steps(engine: EngineType, grid: StepGrid, thresholds: Sequence[float]) -> Steps:
    """Steps with prompts, beside sequences that decode where the engine does both at once.

    They have a token at least, so that the corner of none counts only where it is the next one below a token.
    """
    both = engine.decodes and engine.instance.policy != "prefill-first"
    first = 1 if len(grid.tokens) > 1 and grid.tokens[1] <= 1.0 else 0
    batches, contexts = (grid.batches, grid.contexts) if both else (grid.batches[:1], grid.contexts[:1])
    fine, values, bent = _between(batches, grid.mixed_s[: len(batches), : len(contexts), first:])
    below = np.concatenate([fine[:1], fine[:-1]])
    context_NC = np.minimum(contexts[None, :], engine.instance.kv_tokens / np.maximum(below, 1.0)[:, None])
    context_NC = np.maximum(context_NC, contexts[0])
    for row in range(len(fine) if len(contexts) > 1 else 0):
        values[row] = _at(contexts, values[row], context_NC[row])
        bent[row] = _at(contexts, bent[row], context_NC[row])
    axes = (
        fine[:, None, None, None],
        context_NC[:, :, None, None],
        grid.tokens[first:][None, None, :, None],
        grid.attended[None, None, None, :],
    )
    n, c, t, m = (np.broadcast_to(axis, values.shape).ravel() for axis in axes)
    return _steps(n, c, t, m, values.ravel(), bent.ravel(), thresholds)


def _steps(
    n: Floats, c: Floats, t: Floats, m: Floats, seconds: Floats, bent: Floats, thresholds: Sequence[float]
) -> Steps:
    loads = np.empty((len(n), 4 + len(thresholds)), order="F")
    columns = (n, n * c, t, t * m, *(n * np.minimum(c, threshold) for threshold in thresholds))
    for place, column in enumerate(columns):
        loads[:, place] = column
    return Steps(loads, seconds, n * seconds - bent, seconds[None, :])


def _between(batches: Floats, seconds: Floats) -> tuple[Floats, Floats, Floats]:
    """A finer axis of batches [F], seconds on it [F, ..], and the most that n f can lie below its chord beside each."""
    if len(batches) == 1:
        return batches, seconds.copy(), np.zeros_like(seconds)
    places = np.linspace(0.0, len(batches) - 1.0, (len(batches) - 1) * BETWEEN + 1)
    low = np.minimum(places.astype(int), len(batches) - 2)
    up = (places - low)[:, None, None, None]
    fine = batches[low] * (1.0 - up[:, 0, 0, 0]) + batches[low + 1] * up[:, 0, 0, 0]
    values = seconds[low] * (1.0 - up) + seconds[low + 1] * up
    bend = np.maximum(np.diff(values, axis=0), 0.0) * np.diff(fine)[:, None, None, None] / 4.0
    worst = np.zeros_like(values)
    worst[:-1] = bend
    worst[1:] = np.maximum(worst[1:], bend)
    return fine, values, worst


def in_rows(axis: Floats, values: Floats, points: Floats) -> Floats:
    """`values` [N, C] on an axis [C], at points [N, P] within it, row by row: to the last bit those of `np.interp`."""
    if len(axis) == 1:
        return np.broadcast_to(values, points.shape).copy()
    low = np.clip(np.searchsorted(axis, points, side="right") - 1, 0, len(axis) - 2)
    below, above = (np.take_along_axis(values, place, axis=1) for place in (low, low + 1))
    within = (above - below) / (axis[low + 1] - axis[low]) * (points - axis[low]) + below
    return np.asarray(np.where(points >= axis[-1], values[:, -1:], within))


def _at(axis: Floats, values: Floats, points: Floats) -> Floats:
    """`values` [C, ..] on an axis [C], at points [P] within it."""
    low = np.clip(np.searchsorted(axis, points, side="right") - 1, 0, len(axis) - 2)
    up = ((points - axis[low]) / (axis[low + 1] - axis[low]))[:, None, None]
    return np.asarray(values[low] * (1.0 - up) + values[low + 1] * up)
