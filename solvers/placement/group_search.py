"""Groups and their models by simulation: partitions of the devices are filled greedily, then models change places.

The most of the requests of given streams that are on time under the first-come rule (`shared_groups`):
(1) partitions: groups of a shape alone, and mixes of the best shapes of different sizes;
(2) each is filled: models in turn, the busiest first, to the group with room that has least load for its speed;
(3) the best are climbed from: two models change places, a model takes the place of another, or one more comes where
    there is room. A step is taken if no more requests are late, or few more at first (simulated annealing), and all
    steps see the same requests. Partitions are halved as their climbs go on (successive halving).
Streams are cut to the spans in which requests were late under one of several fillings: elsewhere nothing is decided.
Source: AlpaServe (OSDI 2023), section 4.2, fills groups greedily by simulation; (3) and mixes go beyond it.
"""

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from planner.arrays import Floats
from planner.solvers.placement.group_streams import Group, Stream
from planner.solvers.placement.shared_groups import SharedGroups, late, lost
from planner.solvers.result import SolveResult, Status

SOLVER = "greedy fill and annealed exchanges, by simulation"
BEST_SHAPES = 4  # of those alone, that are mixed
MIXED = (0.125, 0.25, 0.5, 0.75)  # of the devices, in groups of the larger shape
CLIMBED = 8  # partitions from which climbs start
FILLINGS = 3  # by whose late requests streams are cut
SPAN_BEFORE, SPAN_AFTER = 2.5, 0.2  # of the largest limit, kept around a late request
MOST_STEPS = 5_000  # of one round of a climb
HEAT = 2e-3  # of the late requests: how many more a step may cost at first
STANDARD_ERRORS = 2.0  # of paired differences, by which a climbed placement must be better than a filled one
EXCHANGES = 0.6  # share of the steps in which two models change places


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is simulated."""

    requests: int  # under all steps together
    seed: int = 0


def search(
    problem: SharedGroups,
    load_M: Floats,
    streams: Sequence[Stream],
    judged: Sequence[Stream],
    effort: Effort,
    allowed: Callable[[tuple[Group, ...]], bool] = lambda groups: True,
) -> SolveResult[tuple[Group, ...]]:
    """The best groups that were simulated, chosen on `streams` of models with the mean loads `load_M`.

    Which climb was best is told on `judged`, as is the objective, their mean share of requests on time; the best
    filling stays where no climb is clearly better.
    The status is FEASIBLE: `group_bounds` says how much better any groups can be. It is UNKNOWN where no filling has
    every model on as many groups as is asked for, or none is `allowed`, which is asked of what is to be chosen alone.
    """
    started_s = time.perf_counter()
    filled = sorted(_partitions_filled(problem, load_M, streams), key=lambda pair: pair[0])
    fillings = [groups for _, groups in filled if problem.hosted(groups) and allowed(groups)][:CLIMBED]
    if not fillings:
        elapsed_s = time.perf_counter() - started_s
        return SolveResult(Status.UNKNOWN, "finished", None, None, None, elapsed_s, SOLVER)
    cut = [_cut(problem, fillings[:FILLINGS], stream) for stream in streams]
    climbs = [_Climb(problem, cut, groups, random.Random(effort.seed)) for groups in fillings]
    rounds = math.ceil(math.log2(CLIMBED)) + 1
    finalists: list[tuple[Group, ...]] = []
    for _ in range(rounds):
        for climb in climbs:
            climb.run(effort.requests / rounds / len(climbs))
        climbs.sort(key=lambda climb: climb.least)
        climbs = climbs[: math.ceil(len(climbs) / 2)]
        finalists += [climb.best for climb in climbs[:2]]
    able = [groups for groups in dict.fromkeys(finalists) if allowed(groups)] or fillings[:1]
    chosen = max(able, key=lambda groups: share_on_time(problem, groups, judged))
    if not _told_apart(shares_on_time(problem, chosen, judged), shares_on_time(problem, fillings[0], judged)):
        chosen = fillings[0]
    objective = share_on_time(problem, chosen, judged)
    return SolveResult(Status.FEASIBLE, "finished", chosen, objective, None, time.perf_counter() - started_s, SOLVER)


def share_on_time(problem: SharedGroups, groups: Sequence[Group], streams: Sequence[Stream]) -> float:
    """Mean over the streams of the share of requests that are on time."""
    return float(np.mean(shares_on_time(problem, groups, streams)))


def shares_on_time(problem: SharedGroups, groups: Sequence[Group], streams: Sequence[Stream]) -> Floats:
    """Of the requests of each stream, those that are on time; 1 where there are none. [S]"""
    return np.array([1.0 - lost(problem, groups, [stream]) / max(stream.judged, 1) for stream in streams])


def _told_apart(better_S: Floats, other_S: Floats) -> bool:
    """Whether the mean of paired differences lies more than two standard errors above 0."""
    differences = better_S - other_S
    error = float(differences.std(ddof=1)) / math.sqrt(len(differences)) if len(differences) > 1 else 0.0
    return float(differences.mean()) > STANDARD_ERRORS * error


def fill(problem: SharedGroups, shapes: Sequence[int], load_M: Floats) -> tuple[Group, ...]:
    """Groups of the given shapes, with models in turn, the busiest first, as long as any group has room."""
    order = [int(model) for model in np.argsort(-load_M, kind="stable")]
    fits = np.array([problem.hosts(shape) for shape in shapes])
    weight = np.array([problem.shapes[shape].weight_bytes_M for shape in shapes])
    pace_s = [problem.pace_s(shape) for shape in shapes]
    room = np.full(len(shapes), problem.memory_bytes)
    hosts: list[list[int]] = [[] for _ in shapes]
    load, turns = np.zeros(len(shapes)), True
    for_model: dict[int, list[int]] = {model: [] for model in order}
    while turns:
        turns = False
        for model in order:
            free = [
                g
                for g in range(len(shapes))
                if fits[g, model] and weight[g, model] <= room[g] and model not in hosts[g]
                if not problem.clashes(hosts[g], model)
            ]
            if not free:
                continue
            chosen = min(free, key=lambda g: (load[g] * pace_s[g], g))
            for g in for_model[model]:
                load[g] -= load_M[model] / len(for_model[model])
            for_model[model].append(chosen)
            for g in for_model[model]:
                load[g] += load_M[model] / len(for_model[model])
            hosts[chosen].append(model)
            room[chosen] -= weight[chosen, model]
            turns = True
    return tuple(Group(shape, tuple(sorted(models))) for shape, models in zip(shapes, hosts, strict=True))


def partitions(problem: SharedGroups, shape: int, other: int | None = None, part: float = 0.0) -> tuple[int, ...]:
    """Shapes of groups: `part` of the devices in `other`, the rest in `shape`, what is left in smaller ones."""
    chosen: list[int] = []
    if other is not None:
        wanted = round(part * problem.devices / problem.shapes[other].devices)
        chosen += [other] * min(wanted, problem.most_of((), other))
    for size_shape in (shape, *_smaller(problem, shape)):
        chosen += [size_shape] * problem.most_of(chosen, size_shape)
    return tuple(chosen)


def _smaller(problem: SharedGroups, shape: int) -> Iterator[int]:
    """Of every smaller size, the largest first, the shape that gives most requests a second."""
    sizes = {problem.shapes[index].devices for index in problem.usable}
    for size in sorted((size for size in sizes if size < problem.shapes[shape].devices), reverse=True):
        alike = [index for index in problem.usable if problem.shapes[index].devices == size]
        yield min(alike, key=problem.pace_s)


def _partitions_filled(
    problem: SharedGroups, load_M: Floats, streams: Sequence[Stream]
) -> Iterator[tuple[int, tuple[Group, ...]]]:
    """Partitions, with how many requests are late when they are filled."""
    known: dict[tuple[int, ...], int] = {}
    alone: dict[int, int] = {}
    pairs: list[tuple[int, int | None, float]] = [(shape, None, 0.0) for shape in problem.usable]
    for stage in (0, 1):
        if stage:
            best = sorted(alone, key=lambda shape: alone[shape])[:BEST_SHAPES]
            sizes = {shape: problem.shapes[shape].devices for shape in best}
            pairs = [(a, b, part) for a in best for b in best if sizes[a] < sizes[b] for part in MIXED]
        for shape, other, part in pairs:
            chosen = partitions(problem, shape, other, part)
            if chosen in known or not chosen:
                continue
            groups = fill(problem, chosen, load_M)
            known[chosen] = lost(problem, groups, streams)
            if other is None:
                alone[shape] = known[chosen]
            yield known[chosen], groups


def _cut(problem: SharedGroups, fillings: Sequence[Sequence[Group]], stream: Stream) -> Stream:
    """The requests of the spans around those that are late under any of the fillings; all where engines batch."""
    if problem.batches is not None:
        return stream
    limit_s = float(problem.limit_s_M.max())
    marks = np.zeros(len(stream), dtype=np.bool_)
    for groups in fillings:
        marks |= late(problem, groups, stream)
    times = stream.time_s[marks]
    edges = np.zeros(len(stream) + 1, dtype=np.int64)
    np.add.at(edges, np.searchsorted(stream.time_s, times - SPAN_BEFORE * limit_s), 1)
    np.add.at(edges, np.searchsorted(stream.time_s, times + SPAN_AFTER * limit_s, side="right"), -1)
    kept = np.cumsum(edges[:-1]) > 0
    return Stream(stream.time_s[kept], stream.model[kept])


@dataclass(slots=True)
class _Climb:
    """Steps from one placement; the best so far, and how many of the cut streams' requests it has late."""

    problem: SharedGroups
    streams: Sequence[Stream]
    best: tuple[Group, ...]
    draws: random.Random
    least: int = field(init=False)
    current: list[Group] = field(init=False)
    late: int = field(init=False)

    def __post_init__(self) -> None:
        self.current = list(self.best)
        self.least = self.late = lost(self.problem, self.best, self.streams)

    def run(self, requests: float) -> None:
        """Steps until so many requests were simulated, from hot to cold; goes on from the best."""
        self.current, self.late = list(self.best), self.least
        size = max(sum(len(stream) for stream in self.streams), 1)
        steps = min(int(requests / size), MOST_STEPS)
        for step in range(steps):
            heat = HEAT * self.late * (1.0 - step / steps)
            most = self.late + int(-heat * math.log(1.0 - self.draws.random()))
            changed = self._step()
            if changed is None:
                continue
            number = lost(self.problem, changed, self.streams, most)
            if number <= most:
                self.current, self.late = changed, number
                if number < self.least:
                    self.best, self.least = tuple(changed), number

    def _step(self) -> list[Group] | None:
        """A placement next to the current one; None where the draw gives none that fits."""
        draws, groups = self.draws, self.current
        index = draws.randrange(len(groups))
        group = groups[index]
        models = [model for model in range(self.problem.models) if model not in group.models]
        if not models:
            return None
        comes = draws.choice(models)
        grown = Group(group.shape, tuple(sorted((*group.models, comes))))
        if self._fits(grown):
            return [*groups[:index], grown, *groups[index + 1 :]]
        if not group.models:
            return None
        goes = draws.choice(group.models)
        changed = list(groups)
        changed[index] = _with(group, goes, comes)
        if draws.random() < EXCHANGES:
            others = [g for g, each in enumerate(groups) if comes in each.models and goes not in each.models]
            if not others:
                return None
            other = draws.choice(others)
            changed[other] = _with(groups[other], comes, goes)
            return changed if self._fits(changed[other]) and self._fits(changed[index]) else None
        left = sum(goes in each.models for each in changed)
        return changed if left >= max(self.problem.least_hosts, 1) and self._fits(changed[index]) else None

    def _fits(self, group: Group) -> bool:
        hosted = self.problem.hosts(group.shape)
        quiet = not any(a in group.models and b in group.models for a, b in self.problem.apart)
        fits = self.problem.held_bytes(group) <= self.problem.memory_bytes
        return quiet and fits and bool(hosted[list(group.models)].all())


def _with(group: Group, goes: int, comes: int) -> Group:
    return Group(group.shape, tuple(sorted((*(model for model in group.models if model != goes), comes))))
