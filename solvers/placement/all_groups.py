"""All placements of models on groups of few devices, one after the other: what brute force tries."""

import itertools
import math
from collections.abc import Iterator, Sequence

from planner.solvers.placement.group_streams import Group
from planner.solvers.placement.shared_groups import SharedGroups

MOST_MODELS = 8  # of which all subsets are listed


def placements(problem: SharedGroups, most: float = math.inf) -> list[tuple[Group, ...]] | None:
    """All groups that keep the constraints and hold every model as often as is asked for; none of them is empty.

    None where there are more sets of groups than `most` that devices have room for, or too many models to list them.
    """
    if problem.models > MOST_MODELS:
        return None
    kinds = _kinds(problem)
    if _number(problem, kinds) > most:
        return None
    return [groups for groups in _beside(problem, kinds, ()) if problem.feasible(groups) and problem.hosted(groups)]


def _kinds(problem: SharedGroups) -> list[Group]:
    """Every shape with every set of models that it has room for and serves in time, the largest first."""
    models = range(problem.models)
    return [
        group
        for shape in sorted(problem.usable, key=lambda shape: -problem.shapes[shape].devices)
        for number in range(problem.models, 0, -1)
        for chosen in itertools.combinations(models, number)
        if problem.fits(group := Group(shape, chosen))
    ]


def _number(problem: SharedGroups, kinds: Sequence[Group]) -> int:
    """Sets of groups, each of any kind, that take no more than all devices, by how many devices they take."""
    ways = [1, *(0 for _ in range(problem.devices))]
    for kind in kinds:
        size = problem.shapes[kind.shape].devices
        for taken in range(size, problem.devices + 1):
            ways[taken] += ways[taken - size]
    return sum(ways)


def _beside(problem: SharedGroups, kinds: Sequence[Group], groups: tuple[Group, ...]) -> Iterator[tuple[Group, ...]]:
    """Groups of these kinds, in their order, from none on as many as devices have room for."""
    yield groups
    for index, kind in enumerate(kinds):
        if problem.most_of([group.shape for group in groups], kind.shape):
            yield from _beside(problem, kinds[index:], (*groups, kind))
