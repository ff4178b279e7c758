"""Groups filled with models greedily, for partitions of the devices: where searches start.

(1) partitions: groups of a shape alone, and mixes of the best shapes of different sizes;
(2) each is filled: models in turn, the busiest first, to the group with room that has least load for its speed; where
    engines batch, also with one model a group, since others of a group take turns from it;
(3) where engines batch, every model apart on as many groups as suit all (`groups_apart`).
Source: AlpaServe (OSDI 2023), section 4.2, fills groups greedily by simulation; mixes go beyond it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats, Ints
from planner.solvers.placement.group_homes import homes
from planner.solvers.placement.group_streams import Allowance, Group, Stream
from planner.solvers.placement.shared_groups import SharedGroups, lost
from planner.solvers.result import Status

BEST_SHAPES = 4  # of those alone, that are mixed
MIXED = (0.125, 0.25, 0.5, 0.75)  # of the devices, in groups of the larger shape
MOST = 8  # fillings that are kept
MARGIN = 0.1  # of the requests that may be late, which other streams than those of the search may need
TINY = 1e-9  # of a speed, of models that no group has yet

Number = tuple[int, int, int]
"""Late requests of a model by their weights, a shape, and how many groups of it."""


@dataclass(frozen=True, slots=True)
class Fillings:
    """The best ones, and the late requests of each by their weights; without any, what is known of groups at all."""

    groups: tuple[tuple[Group, ...], ...]
    late: tuple[int, ...]
    status: Status


def fillings(
    problem: SharedGroups,
    load_M: Floats,
    streams: Sequence[Stream],
    allowed: Callable[[tuple[Group, ...]], bool] = lambda groups: True,
) -> Fillings:
    """The best fillings on these streams that hold all models, else groups of `group_homes`, which may be no good.

    The status is INFEASIBLE where it is proven that no groups hold all models, and UNKNOWN where none is `allowed`.
    """
    allowance = asked(problem, streams, MARGIN)
    filled = [*_partitions_filled(problem, load_M, streams, allowance)]
    alone = groups_apart(problem, streams, allowance) if problem.batches is not None else None
    if alone is not None:
        filled.append((lost(problem, alone, streams, allowance=allowance), alone))
    filled.sort(key=lambda pair: pair[0])
    best = [(late, groups) for late, groups in filled if problem.hosted(groups) and allowed(groups)][:MOST]
    if not best:
        held = homes(problem)
        groups = held.solution
        if groups is None or not problem.feasible(groups) or not allowed(groups):
            return Fillings((), (), Status.INFEASIBLE if held.status is Status.INFEASIBLE else Status.UNKNOWN)
        best = [(lost(problem, groups, streams, allowance=allowance), groups)]
    return Fillings(tuple(groups for _, groups in best), tuple(late for late, _ in best), Status.FEASIBLE)


def asked(problem: SharedGroups, streams: Sequence[Stream], margin: float) -> Allowance:
    """Late requests that models may have on streams, less a margin."""
    if problem.required_M is None:
        return Allowance.free(problem.models)
    return Allowance.of(1.0 - (1.0 - problem.required_M) * (1.0 - margin), streams)


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


def groups_apart(problem: SharedGroups, streams: Sequence[Stream], allowance: Allowance) -> tuple[Group, ...] | None:
    """Groups of each model apart, the largest first; None where devices are too few for a group of each model.

    Sets        m in M models; c in C shapes of D_c devices
    Parameters  D devices; n_min groups of a model at least; l_mcn late requests, by their weights, of m alone on n
                groups of shape c (simulated)
    Variables   x_mcn in {0, 1}: model m has n groups of shape c
    Objective   min sum l_mcn x_mcn
    Constraints sum_cn x_mcn = 1 for every m;  sum n D_c x_mcn <= D;  x_mcn = 0 where c has no room for m, or n < n_min
    Method      a dynamic program over models and devices. Groups of different models share nothing, so that late
                requests add up: the optimum over placements with one model a group, and one shape a model.
    """
    least_M = [_least_devices(problem, model) for model in range(problem.models)]
    spare = problem.devices - sum(least_M)
    if spare < 0:
        return None
    late_D = np.zeros(problem.devices + 1, dtype=np.int64)
    chosen_MD = []
    for model, least in enumerate(least_M):
        own = [stream.of(model) for stream in streams]
        numbers = list(_numbers(problem, model, least + spare, own, allowance))
        late_D, chosen_D = _with_model(problem, late_D, numbers)
        chosen_MD.append(chosen_D)
    left, groups = problem.devices, list[Group]()
    for model in range(problem.models - 1, -1, -1):
        _, shape, number = chosen_MD[model][left]
        groups += [Group(shape, (model,))] * number
        left -= number * problem.shapes[shape].devices
    groups.sort(key=lambda group: (-problem.shapes[group.shape].devices, group.models))
    return tuple(groups) if problem.feasible(groups) else None


def _hosting(problem: SharedGroups, model: int) -> list[int]:
    """Shapes whose groups have room for a model."""
    return [shape for shape in problem.usable if problem.hosts(shape)[model]]


def _least_devices(problem: SharedGroups, model: int) -> int:
    return max(problem.least_hosts, 1) * min(problem.shapes[shape].devices for shape in _hosting(problem, model))


def _numbers(
    problem: SharedGroups, model: int, most_devices: int, own: Sequence[Stream], allowance: Allowance
) -> Iterator[Number]:
    """Numbers of groups of each shape, up to the first with which no request is late."""
    for shape in _hosting(problem, model):
        for number in range(max(problem.least_hosts, 1), most_devices // problem.shapes[shape].devices + 1):
            late = lost(problem, [Group(shape, (model,))] * number, own, allowance=allowance)
            yield late, shape, number
            if not late:
                break


def _with_model(problem: SharedGroups, before_D: Ints, numbers: Sequence[Number]) -> tuple[Ints, list[Number]]:
    """Fewest late requests with one model more on up to so many devices, [D], and what it has then."""
    never = np.iinfo(np.int64).max // 2
    late_D, best_D = np.full_like(before_D, never), [numbers[0]] * len(before_D)
    for each in numbers:
        late, shape, number = each
        used = number * problem.shapes[shape].devices
        with_D = np.full_like(before_D, never)
        with_D[used:] = np.minimum(before_D[: len(before_D) - used] + late, never)
        better_D = with_D < late_D
        late_D = np.where(better_D, with_D, late_D)
        best_D = [each if better else best for better, best in zip(better_D, best_D, strict=True)]
    return late_D, best_D


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
