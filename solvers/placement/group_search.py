"""Groups and their models by simulation: partitions of the devices are filled greedily, then models change places.

The most of the requests of given streams that are on time under the first-come rule (`shared_groups`):
(1) partitions: groups of a shape alone, and mixes of the best shapes of different sizes;
(2) each is filled: models in turn, the busiest first, to the group with room that has least load for its speed; where
    engines batch, also with one model a group, since others of a group take turns from it;
(3) the best are climbed from: two models change places, a model takes the place of another, one more comes where
    there is room, or, where engines batch, one leaves. A step is taken if no more requests are late, or few more at
    first (simulated annealing), and all steps see the same requests. Partitions are halved as their climbs go on
    (successive halving).
Where shares of models are asked for (C6), late requests beyond those that a model may have count before all others.
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
from planner.solvers.placement.group_streams import Allowance, Group, Stream
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
MARGIN = 0.1  # of the requests that may be late, which other streams than those of the search may need
STANDARD_ERRORS = 2.0  # of paired differences, by which a climbed placement must be better than a filled one
TINY = 1e-9  # of a speed, of models that no group has yet
EXCHANGES = 0.6  # share of the steps in which two models change places
LEAVES = 0.3  # share of the steps in which a model leaves a group, where engines batch


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
    filling stays where no climb is clearly better, or more models have the shares that are asked for.
    The status is FEASIBLE: `group_bounds` says how much better any groups can be. It is UNKNOWN where no filling has
    every model on as many groups as is asked for, or none is `allowed`, which is asked of what is to be chosen alone.
    """
    started_s = time.perf_counter()
    allowance = _allowance(problem, streams)
    filled = sorted(_partitions_filled(problem, load_M, streams, allowance), key=lambda pair: pair[0])
    fillings = [groups for _, groups in filled if problem.hosted(groups) and allowed(groups)][:CLIMBED]
    if not fillings:
        elapsed_s = time.perf_counter() - started_s
        return SolveResult(Status.UNKNOWN, "finished", None, None, None, elapsed_s, SOLVER)
    cut = [_cut(problem, fillings[:FILLINGS], stream) for stream in streams]
    climbs = [_Climb(problem, cut, allowance, groups, random.Random(effort.seed)) for groups in fillings]
    rounds = math.ceil(math.log2(CLIMBED)) + 1
    finalists: list[tuple[Group, ...]] = []
    for _ in range(rounds):
        for climb in climbs:
            climb.run(effort.requests / rounds / len(climbs))
        climbs.sort(key=lambda climb: climb.least)
        climbs = climbs[: math.ceil(len(climbs) / 2)]
        finalists += [climb.best for climb in climbs[:2]]
    able = [groups for groups in dict.fromkeys(finalists) if allowed(groups)] or fillings[:1]
    chosen = _best(problem, able, fillings[0], judged)
    objective = share_on_time(problem, chosen, judged)
    return SolveResult(Status.FEASIBLE, "finished", chosen, objective, None, time.perf_counter() - started_s, SOLVER)


def _allowance(problem: SharedGroups, streams: Sequence[Stream]) -> Allowance:
    """Late requests that models may have on streams, less a margin."""
    if problem.required_M is None:
        return Allowance.free(problem.models)
    return Allowance.of(1.0 - (1.0 - problem.required_M) * (1.0 - MARGIN), streams)


def _best(
    problem: SharedGroups, climbed: Sequence[tuple[Group, ...]], filling: tuple[Group, ...], judged: Sequence[Stream]
) -> tuple[Group, ...]:
    """Of groups that were climbed to, those with fewest late by their weights; the filling where these are no better.

    As long as either has more late than it may, fewer of these are better; else clearly more requests on time.
    """
    allowance = _allowance(problem, judged)
    late, best = min(
        ((lost(problem, groups, judged, None, allowance), groups) for groups in climbed), key=lambda pair: pair[0]
    )
    filling_late = lost(problem, filling, judged, None, allowance)
    if max(late, filling_late) > sum(stream.judged for stream in judged):
        return best if late < filling_late else filling
    better = _told_apart(shares_on_time(problem, best, judged), shares_on_time(problem, filling, judged))
    return best if better else filling


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


def fill_apart(problem: SharedGroups, shapes: Sequence[int], load_M: Floats) -> tuple[Group, ...]:
    """Groups of the given shapes, the fastest first, each for the model that fits and has most load a speed so far."""
    speed_M, groups = np.full(problem.models, TINY), list[Group]()
    for shape in sorted(shapes, key=problem.pace_s):
        hosted_M = problem.hosts(shape)
        if not hosted_M.any():
            continue
        model = int(np.argmax(np.where(hosted_M, load_M / speed_M, -1.0)))
        speed_M[model] += 1.0 / problem.pace_s(shape)
        groups.append(Group(shape, (model,)))
    return tuple(groups)


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
    problem: SharedGroups, load_M: Floats, streams: Sequence[Stream], allowance: Allowance
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
            fillings = [fill(problem, chosen, load_M)]
            if problem.batches is not None:
                fillings.append(fill_apart(problem, chosen, load_M))
            rated = [(lost(problem, groups, streams, allowance=allowance), groups) for groups in fillings]
            known[chosen] = min(late for late, _ in rated)
            if other is None:
                alone[shape] = known[chosen]
            yield from rated


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
    """Steps from one placement; the best so far, and its late requests of the cut streams by their weights."""

    problem: SharedGroups
    streams: Sequence[Stream]
    allowance: Allowance  # of the whole streams
    best: tuple[Group, ...]
    draws: random.Random
    least: int = field(init=False)
    current: list[Group] = field(init=False)
    late: int = field(init=False)

    def __post_init__(self) -> None:
        self.current = list(self.best)
        self.least = self.late = lost(self.problem, self.best, self.streams, None, self.allowance)

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
            number = lost(self.problem, changed, self.streams, most, self.allowance)
            if number <= most:
                self.current, self.late = changed, number
                if number < self.least:
                    self.best, self.least = tuple(changed), number

    def _step(self) -> list[Group] | None:
        """A placement next to the current one; None where the draw gives none that fits."""
        draws, groups = self.draws, self.current
        index = draws.randrange(len(groups))
        group = groups[index]
        if self.problem.batches is not None and draws.random() < LEAVES:
            return self._without(index)
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

    def _without(self, index: int) -> list[Group] | None:
        """The current placement with one model fewer on a group; None where that leaves too few groups of it."""
        group = self.current[index]
        if len(group.models) < 2:
            return None
        goes = self.draws.choice(group.models)
        if sum(goes in each.models for each in self.current) <= max(self.problem.least_hosts, 1):
            return None
        changed = list(self.current)
        changed[index] = Group(group.shape, tuple(model for model in group.models if model != goes))
        return changed

    def _fits(self, group: Group) -> bool:
        hosted = self.problem.hosts(group.shape)
        quiet = not any(a in group.models and b in group.models for a, b in self.problem.apart)
        fits = self.problem.held_bytes(group) <= self.problem.memory_bytes
        return quiet and fits and bool(hosted[list(group.models)].all())


def _with(group: Group, goes: int, comes: int) -> Group:
    return Group(group.shape, tuple(sorted((*(model for model in group.models if model != goes), comes))))
