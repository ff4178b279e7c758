"""Groups and their models by simulation: partitions of the devices are filled greedily, then models change places.

The most of the requests of given streams that are on time under the first-come rule (`shared_groups`):
(1) partitions: groups of a shape alone, and mixes of the best shapes of different sizes;
(2) each is filled: models in turn, the busiest first, to the group with room that has least load for its speed; where
    engines batch, also with one model a group, since others of a group take turns from it;
(3) the best are climbed from: two models change places, a model takes the place of another, one more comes where
    there is room, or, where engines batch, one leaves. A step is taken if no more requests are late, or few more at
    first (simulated annealing), and all steps see the same requests. Partitions are halved as their climbs go on
    (successive halving).
Where all placements there are take no longer to simulate than the climbs, they are simulated in place of (3).
Where shares of models are asked for (C6), late requests beyond those that a model may have count before all others.
Streams are cut to the spans in which requests were late under one of several fillings: elsewhere nothing is decided.
Source: AlpaServe (OSDI 2023), section 4.2, fills groups greedily by simulation; (3) and mixes go beyond it.
"""

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats, Ints
from planner.solvers.placement.all_groups import placements
from planner.solvers.placement.group_climb import Climb
from planner.solvers.placement.group_homes import homes
from planner.solvers.placement.group_streams import Allowance, Group, Stream
from planner.solvers.placement.shared_groups import SharedGroups, late, late_counts, lost
from planner.solvers.result import SolveResult, Status

SOLVER = "greedy fill and annealed exchanges, by simulation"
BEST_SHAPES = 4  # of those alone, that are mixed
MIXED = (0.125, 0.25, 0.5, 0.75)  # of the devices, in groups of the larger shape
CLIMBED = 8  # partitions from which climbs start
FILLINGS = 3  # by whose late requests streams are cut
SPAN_BEFORE, SPAN_AFTER = 2.5, 0.2  # of the largest limit, kept around a late request
MARGIN = 0.1  # of the requests that may be late, which other streams than those of the search may need
STANDARD_ERRORS = 2.0  # of paired differences, by which a climbed placement must be better than a filled one
HOPELESS = 0.25  # of the requests of a model, beyond those that may be late: climbs that are not nearer are given up
TINY = 1e-9  # of a speed, of models that no group has yet


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
    The status is FEASIBLE: `group_bounds` says how much better any groups can be. Where no filling has every model on
    as many groups as is asked for, `group_homes` finds some that do; the status is INFEASIBLE where it proves that none
    exist, and UNKNOWN where none is `allowed`, which is asked of what is to be chosen alone.
    """
    started_s = time.perf_counter()
    allowance = _asked(problem, streams, MARGIN)
    fillings, none = _starts(problem, load_M, streams, allowance, allowed)
    if not fillings:
        return SolveResult(none, "finished", None, None, None, time.perf_counter() - started_s, SOLVER)
    finalists, start = _few(problem, fillings[0], streams, effort), None
    if not finalists:
        finalists, start = _climbed(problem, fillings, streams, allowance, effort), fillings[0]
    able = [groups for groups in dict.fromkeys(finalists) if allowed(groups)] or fillings[:1]
    chosen = _best(problem, able, start or able[0], judged)
    objective = share_on_time(problem, chosen, judged)
    return SolveResult(Status.FEASIBLE, "finished", chosen, objective, None, time.perf_counter() - started_s, SOLVER)


def _few(
    problem: SharedGroups, filling: tuple[Group, ...], streams: Sequence[Stream], effort: Effort
) -> list[tuple[Group, ...]]:
    """The best of all placements there are, where to simulate them takes no more than the climbs; else none.

    Of equals the filling comes first.
    """
    most = effort.requests // max(sum(len(stream) for stream in streams), 1)
    every = placements(problem, most)
    if every is None:
        return []
    every.insert(0, filling)
    late_M = {groups: late_counts(problem, groups, streams).sum(axis=0) for groups in every}
    return sorted(every, key=lambda groups: _rank(problem, late_M[groups], streams))[:CLIMBED]


def _climbed(
    problem: SharedGroups,
    fillings: Sequence[tuple[Group, ...]],
    streams: Sequence[Stream],
    allowance: Allowance,
    effort: Effort,
) -> list[tuple[Group, ...]]:
    """The best of climbs from fillings, after every round."""
    cut = [_cut(problem, fillings[:FILLINGS], stream) for stream in streams]
    climbs = [Climb(problem, cut, allowance, groups, random.Random(effort.seed)) for groups in fillings]
    rounds = math.ceil(math.log2(CLIMBED)) + 1
    finalists: list[tuple[Group, ...]] = []
    for _ in range(rounds):
        for climb in climbs:
            climb.run(effort.requests / rounds / len(climbs))
        climbs.sort(key=lambda climb: climb.least)
        climbs = climbs[: math.ceil(len(climbs) / 2)]
        finalists += [climb.best for climb in climbs[:2]]
        if climbs[0].least > _hopeless(streams):
            break
    return finalists


def _starts(
    problem: SharedGroups,
    load_M: Floats,
    streams: Sequence[Stream],
    allowance: Allowance,
    allowed: Callable[[tuple[Group, ...]], bool],
) -> tuple[list[tuple[Group, ...]], Status]:
    """The best fillings, else groups that hold all models; without any, what is known of these."""
    filled = sorted(_partitions_filled(problem, load_M, streams, allowance), key=lambda pair: pair[0])
    fillings = [groups for _, groups in filled if problem.hosted(groups) and allowed(groups)][:CLIMBED]
    if fillings:
        return fillings, Status.FEASIBLE
    held = homes(problem)
    if held.solution is not None and problem.feasible(held.solution) and allowed(held.solution):
        return [held.solution], Status.FEASIBLE
    return [], Status.INFEASIBLE if held.status is Status.INFEASIBLE else Status.UNKNOWN


def _hopeless(streams: Sequence[Stream]) -> float:
    """Late requests by their weights, where some model has far more of its own than it may."""
    return HOPELESS * sum(stream.judged for stream in streams) ** 2


def _asked(problem: SharedGroups, streams: Sequence[Stream], margin: float) -> Allowance:
    """Late requests that models may have on streams, less a margin."""
    if problem.required_M is None:
        return Allowance.free(problem.models)
    return Allowance.of(1.0 - (1.0 - problem.required_M) * (1.0 - margin), streams)


def _best(
    problem: SharedGroups, climbed: Sequence[tuple[Group, ...]], start: tuple[Group, ...], judged: Sequence[Stream]
) -> tuple[Group, ...]:
    """Of groups that were climbed to, those with fewest late by their weights; the start where these are no better.

    As long as either has more late than it may, fewer of these are better; else clearly more requests on time.
    """
    late_SM = {groups: late_counts(problem, groups, judged) for groups in dict.fromkeys((*climbed, start))}
    ranks = {groups: _rank(problem, late.sum(axis=0), judged) for groups, late in late_SM.items()}
    best, count = min(climbed, key=lambda groups: ranks[groups]), sum(stream.judged for stream in judged)
    if max(ranks[best][1], ranks[start][1]) > count:
        return min(best, start, key=lambda groups: ranks[groups])
    judged_S = np.array([max(stream.judged, 1) for stream in judged])
    shares = {groups: 1.0 - late_SM[groups].sum(axis=1) / judged_S for groups in (best, start)}
    return best if _told_apart(shares[best], shares[start]) else start


def _rank(problem: SharedGroups, late_M: Ints, streams: Sequence[Stream]) -> tuple[int, int]:
    """Weights of the late requests of models beyond those they may have; then of all, less a margin."""
    asked, wanted = _asked(problem, streams, 0.0), _asked(problem, streams, MARGIN)
    return asked.weighed(late_M) - int(late_M.sum()), wanted.weighed(late_M)


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
