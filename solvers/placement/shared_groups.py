"""Statistical multiplexing: models that share groups of devices, and how many requests are on time (AlpaServe).

Source      Li et al., "AlpaServe: Statistical Multiplexing with Model Parallelism for Deep Learning Serving",
            OSDI 2023, section 4
Sets        m in M models; c in C shapes of a group (parallelism inside a stage, and stages); k in K stages
Parameters  D devices, alike, N of a node;  B bytes of a device;  a_c devices of a group of shape c
            t_cmk [s] of a request of m in stage k;  w_cm bytes of m on the fullest device;  l_m [s] from arrival to end
            r_m share of the requests of m that is to be on time
Variables   groups g with their shapes c(g), and H_g, the models that live on g
Objective   most requests of given streams that are on time, where every request goes by the first-come rule
(C1) sum_g a_c(g) <= D;  a group lies within a node, or takes whole ones
(C2) sum of w_c(g)m over m in H_g <= B
(C3) every model lives on so many groups at least, where that is asked for
(C4) sum of a_c(g) over groups of at least s devices <= R_s, where devices are free here and there
(C5) models that are to be apart share no group
(C6) r_m of the requests of m are on time, where that is asked for: the search keeps it as far as it can
Rule        A request goes to the group of its model whose last stage is free first (the first of equals). Stages take
            requests in order, without batches. A request that would be late is dropped and leaves no trace.
            Engines that batch have a rule of their own (`batched_groups`), and stage times only guide the search.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner.arrays import Bools, Floats, Ints
from planner.errors import PlannerError
from planner.solvers.placement.batched_groups import NEVER, Batches, simulated
from planner.solvers.placement.group_streams import Allowance, Group, Stream

WHERE = "placement"


@dataclass(frozen=True, slots=True, eq=False)
class GroupShape:
    """How the devices of a group work together; [m] model, [k] stage. A model that cannot run so has infinite bytes."""

    name: str
    devices: int
    stage_s_MK: Floats
    weight_bytes_M: Floats

    @property
    def latency_s_M(self) -> Floats:
        """Of a request on an idle group [s]."""
        return np.asarray(self.stage_s_MK.sum(axis=1))

    @property
    def bottleneck_s_M(self) -> Floats:
        """Between requests on a busy group [s]."""
        return np.asarray(self.stage_s_MK.max(axis=1))


@dataclass(frozen=True, eq=False)
class SharedGroups:
    """The problem without its requests; shape suffix M: model. Raises PlannerError for figures that cannot be."""

    devices: int
    node_devices: int
    memory_bytes: float
    shapes: tuple[GroupShape, ...]
    limit_s_M: Floats
    batches: Batches | None = None  # engines that batch, in place of the rule
    least_hosts: int = 0  # groups on which every model lives
    room_at: tuple[tuple[int, int], ...] = ()  # sizes, and devices that groups of at least such a size can take
    apart: frozenset[tuple[int, int]] = frozenset()  # models that share no group, the lower first
    required_M: Floats | None = None  # share of the requests of each model that is to be on time

    def __post_init__(self) -> None:
        if self.devices < 1 or self.node_devices < 1 or not self.memory_bytes > 0:
            what = f"{self.devices} devices, {self.node_devices} of a node, {self.memory_bytes:g} bytes of each"
            raise PlannerError(what, where=WHERE, hint="give at least one device, and memory above 0")
        if not self.usable:
            sizes = sorted({shape.devices for shape in self.shapes})
            raise PlannerError(
                f"no group of {sizes} devices fits on {self.devices} devices, {self.node_devices} of a node",
                where=WHERE,
                hint="give a shape that lies within a node or takes whole ones",
            )
        for model in range(self.models):
            if not any(self.hosts(shape)[model] for shape in self.usable):
                least = min(float(self.shapes[shape].weight_bytes_M[model]) for shape in self.usable)
                raise PlannerError(
                    f"model {model} fits no group: it takes {least:.6g} bytes of a device at least, which has "
                    f"{self.memory_bytes:.6g}",
                    where=WHERE,
                    hint="give a shape of more devices, or devices of more memory",
                )

    @property
    def models(self) -> int:
        return len(self.limit_s_M)

    @cached_property
    def usable(self) -> tuple[int, ...]:
        """Shapes of which the cluster has room for a group (C1)."""
        return tuple(
            index
            for index, shape in enumerate(self.shapes)
            if shape.devices <= self.devices
            and self.most_of((), index) > 0
            and (self.node_devices % shape.devices == 0 or shape.devices % self.node_devices == 0)
        )

    def most_of(self, chosen: Sequence[int], shape: int) -> int:
        """Groups of a shape that have room beside the chosen ones, by their shapes (C1), (C4)."""
        size, sizes = self.shapes[shape].devices, [self.shapes[index].devices for index in chosen]
        left = [self.devices - sum(sizes)]
        left += [
            room - sum(other for other in sizes if other >= least) for least, room in self.room_at if least <= size
        ]
        return max(min(left), 0) // size

    def clashes(self, models: Sequence[int], model: int) -> bool:
        """Whether one of the models is to be apart from this one (C5)."""
        return any((min(other, model), max(other, model)) in self.apart for other in models)

    def hosts(self, shape: int) -> Bools:
        """Whether a group of the shape has room for a model alone, and serves one in time when it is idle. [M]"""
        figures = self.shapes[shape]
        in_time = figures.latency_s_M <= self.limit_s_M
        return np.asarray((figures.weight_bytes_M <= self.memory_bytes) & in_time)

    def pace_s(self, shape: int) -> float:
        """Mean time between requests of the models that a group of the shape serves, infinite where it serves none."""
        hosted = self.hosts(shape)
        return float(self.shapes[shape].bottleneck_s_M[hosted].mean()) if hosted.any() else math.inf

    def held_bytes(self, group: Group) -> float:
        """Of the fullest device of a group."""
        return float(self.shapes[group.shape].weight_bytes_M[list(group.models)].sum())

    def fits(self, group: Group) -> bool:
        """Whether a group has room for its models and serves each in time when it is idle, and none are to be apart."""
        return self._together(group) and bool(self.hosts(group.shape)[list(group.models)].all())

    def _together(self, group: Group) -> bool:
        """(C2) and (C5)."""
        apart = any(a in group.models and b in group.models for a, b in self.apart)
        return not apart and self.held_bytes(group) <= self.memory_bytes

    def hosted(self, groups: Sequence[Group]) -> bool:
        """Whether every model lives on as many groups as is asked for (C3)."""
        counts = np.zeros(self.models, dtype=np.int64)
        for group in groups:
            counts[list(group.models)] += 1
        return bool((counts >= self.least_hosts).all())

    def feasible(self, groups: Sequence[Group]) -> bool:
        """Whether groups keep (C1), (C2), (C4) and (C5); sizes of groups divide or are divided by those of nodes."""
        sizes = [self.shapes[group.shape].devices for group in groups]
        rooms = all(sum(size for size in sizes if size >= least) <= room for least, room in self.room_at)
        each = all(group.shape in self.usable and self._together(group) for group in groups)
        return sum(sizes) <= self.devices and rooms and each

    @cached_property
    def stage_s_CMK(self) -> Floats:
        """Stage times of all shapes, 0 behind the last stage of each. [C, M, K]"""
        stages = max(shape.stage_s_MK.shape[1] for shape in self.shapes)
        padded = np.zeros((len(self.shapes), self.models, stages))
        for index, shape in enumerate(self.shapes):
            padded[index, :, : shape.stage_s_MK.shape[1]] = shape.stage_s_MK
        return padded

    @cached_property
    def stages_C(self) -> Ints:
        """Stages of each shape."""
        return np.array([shape.stage_s_MK.shape[1] for shape in self.shapes], dtype=np.int64)


def on_time(problem: SharedGroups, groups: Sequence[Group], stream: Stream) -> Ints:
    """Requests of each model that are on time under the first-come rule. [M]"""
    in_time = ~late(problem, groups, stream)
    return np.bincount(stream.model[in_time], minlength=problem.models).astype(np.int64)


def late(problem: SharedGroups, groups: Sequence[Group], stream: Stream) -> Bools:
    """Whether each request would be late, or no group has its model; only of groups without batches. [J]"""
    return np.isnan(ends_s(problem, groups, stream))


def ends_s(problem: SharedGroups, groups: Sequence[Group], stream: Stream) -> Floats:
    """When each request ends under the first-come rule [s], nan for those that it drops. [J]"""
    ends = np.full(len(stream), np.nan)
    _run(problem, groups, stream, NEVER, ends, Allowance.free(problem.models))
    return ends


def lost(
    problem: SharedGroups,
    groups: Sequence[Group],
    streams: Sequence[Stream],
    most: int | None = None,
    allowance: Allowance | None = None,
) -> int:
    """Late requests of all streams, by their weights under the allowance, counted up to one more than `most`."""
    return _lost(problem, groups, streams, most, (allowance or Allowance.free(problem.models)).untouched())


def _lost(
    problem: SharedGroups, groups: Sequence[Group], streams: Sequence[Stream], most: int | None, left: Allowance
) -> int:
    """The same, which takes late requests off what is left of the allowance."""
    unmarked, total = np.zeros(0), 0
    for stream in streams:
        more = NEVER if most is None else most - total
        if problem.batches is not None:
            total += simulated(problem.batches, groups, stream, more, left).late
        else:
            total += _run(problem, groups, stream, more, unmarked, left)
        if most is not None and total > most:
            break
    return total


def late_counts(problem: SharedGroups, groups: Sequence[Group], streams: Sequence[Stream]) -> Ints:
    """Late requests of each stream and model. [S, M]"""
    counts = np.zeros((len(streams), problem.models), dtype=np.int64)
    for row, stream in zip(counts, streams, strict=True):
        left = Allowance.free(problem.models)
        _lost(problem, groups, [stream], None, left)
        row[:] = Allowance.free(problem.models).late_M - left.late_M
    return counts


def _run(
    problem: SharedGroups, groups: Sequence[Group], stream: Stream, most: int, ends: Floats, allowance: Allowance
) -> int:
    from planner.solvers.compiled import first_come

    hosts_MG, count_M = _hosts(problem.models, groups)
    shape_G = np.array([group.shape for group in groups], dtype=np.int64)
    figures = problem.stage_s_CMK, problem.stages_C, problem.limit_s_M
    rule = stream.time_s, stream.model, hosts_MG, count_M, shape_G, *figures
    return int(first_come.lost(*rule, most, ends, allowance.late_M, allowance.weight_M))


def _hosts(models: int, groups: Sequence[Group]) -> tuple[Ints, Ints]:
    """Groups of each model in order, [M, G] and how many [M]."""
    hosts = np.zeros((models, max(len(groups), 1)), dtype=np.int64)
    count = np.zeros(models, dtype=np.int64)
    for index, group in enumerate(groups):
        for model in group.models:
            hosts[model, count[model]] = index
            count[model] += 1
    return hosts, count
