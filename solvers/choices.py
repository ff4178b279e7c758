"""Multiple-choice knapsack: one option for every item, at least total time within a capacity.

Source: Nemhauser and Ullmann, Management Science 15 (1969), the list of undominated sums; Sinha and Zoltners,
Operations Research 27 (1979), the linear relaxation over convex hulls, which bounds it.

Sets        g in G classes of n_g equal items, o in O_g options
Parameters  t_go [s] and h_go [bytes] of an item under an option, H [bytes] capacity
Variables   x_go in {0, 1, ...} items of g under o
Minimise    sum t_go x_go
(C1) sum_o x_go = n_g        for g in G    every item has one option
(C2) sum h_go x_go <= H                    they fit

Recurrence over the items: the undominated (bytes, time) of the first k items are those of the first k - 1 plus one
option, without sums whose rest cannot fit, and without sums that even the relaxation of the rest leaves above the best
known.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats, Ints
from planner.errors import PlannerError
from planner.solvers.pareto import DUST, efficient
from planner.solvers.result import SolveResult, Status

SOLVER = "list of undominated sums"


@dataclass(frozen=True, slots=True)
class ItemClass:
    """`count` equal items; options as (time, bytes)."""

    count: int
    options: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class ChoiceProblem:
    """Classes of items and the bytes that all of them have together."""

    groups: tuple[ItemClass, ...]
    capacity: float

    def __post_init__(self) -> None:
        if any(group.count < 0 or not group.options for group in self.groups):
            raise PlannerError("every group needs options, and no less than 0 items", where="groups")
        figures = [figure for group in self.groups for option in group.options for figure in option]
        if not all(np.isfinite(figure) and figure >= 0.0 for figure in figures):
            raise PlannerError("times and bytes must be finite and at least 0", where="groups")


Chosen = tuple[tuple[int, ...], ...]  # by group: how many of its items are under each option


def best_choices(problem: ChoiceProblem) -> SolveResult[Chosen]:
    """The fastest options that fit, proven; INFEASIBLE where even the smallest do not."""
    started_s = time.perf_counter()
    items = [index for index, group in enumerate(problem.groups) for _ in range(group.count)]
    least = sum(min(size for _, size in problem.groups[index].options) for index in items)
    if least > problem.capacity * (1.0 + DUST):
        return SolveResult(Status.INFEASIBLE, "finished", None, None, None, time.perf_counter() - started_s, SOLVER)
    fastest = _fastest(problem)
    if total_bytes(problem, fastest) <= problem.capacity:
        value = total_time(problem, fastest)
        return SolveResult(Status.OPTIMAL, "finished", fastest, value, value, time.perf_counter() - started_s, SOLVER)
    hulls = _rests(problem, items)
    best = _rounded(problem, items)
    rounding = DUST * sum(max(seconds for seconds, _ in problem.groups[index].options) for index in items)
    layers = _sums(problem, items, hulls, best + rounding)
    chosen = _read_off(problem, items, layers)
    value = total_time(problem, chosen)
    return SolveResult(Status.OPTIMAL, "finished", chosen, value, value, time.perf_counter() - started_s, SOLVER)


def _fastest(problem: ChoiceProblem) -> Chosen:
    """All items under the fastest option of their group, of equal ones the smallest."""
    places = [min(range(len(group.options)), key=group.options.__getitem__) for group in problem.groups]
    return tuple(
        tuple(group.count * (option == place) for option in range(len(group.options)))
        for group, place in zip(problem.groups, places, strict=True)
    )


def total_time(problem: ChoiceProblem, chosen: Chosen) -> float:
    """Time of all items."""
    return _total(problem, chosen, 0)


def total_bytes(problem: ChoiceProblem, chosen: Chosen) -> float:
    """Bytes of all items."""
    return _total(problem, chosen, 1)


def _total(problem: ChoiceProblem, chosen: Chosen, figure: int) -> float:
    return sum(
        count * option[figure]
        for group, counts in zip(problem.groups, chosen, strict=True)
        for count, option in zip(counts, group.options, strict=True)
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Hull:
    """The relaxation of the rest: the least time for bytes at the corners, bytes rising."""

    bytes_C: Floats
    time_C: Floats

    def bound(self, room_P: Floats) -> Floats:
        """Lower bound on the time of the rest within these bytes [P]."""
        return np.asarray(np.interp(room_P, self.bytes_C, self.time_C))


@dataclass(frozen=True, slots=True, eq=False)
class _Sums:
    """Undominated sums of the first items: bytes rise, time falls; the last option, and which sum it continues."""

    bytes_P: Floats
    time_P: Floats
    last_P: Ints
    from_P: Ints


def _corners(group: ItemClass) -> list[tuple[float, float]]:
    """The lower convex hull of the options as (bytes, time), bytes rising and time falling."""
    corners: list[tuple[float, float]] = []
    for size, seconds in sorted((size, seconds) for seconds, size in group.options):
        if corners and seconds >= corners[-1][1]:
            continue
        while len(corners) > 1 and _above(corners[-2], corners[-1], (size, seconds)):
            corners.pop()
        corners.append((size, seconds))
    return corners


def _above(first: tuple[float, float], middle: tuple[float, float], last: tuple[float, float]) -> bool:
    """Whether `middle` lies on or above the line from `first` to `last`."""
    return (middle[1] - first[1]) * (last[0] - first[0]) >= (last[1] - first[1]) * (middle[0] - first[0])


def _rests(problem: ChoiceProblem, items: Sequence[int]) -> list[_Hull]:
    """The relaxations of items k, k + 1, ... for k = 0 to all of them."""
    corners = [_corners(group) for group in problem.groups]
    least = [corners[index][0] for index in items]
    steps = sorted(_steps(corners, items))
    more_S, less_S = (np.array([step[figure] for step in steps]) for figure in (1, 2))
    place_S = np.array([step[3] for step in steps], dtype=np.int64)
    hulls = []
    for first in range(len(items) + 1):
        rest_S = place_S >= first
        start_bytes, start_time = (sum(corner[figure] for corner in least[first:]) for figure in (0, 1))
        bytes_C = np.cumsum(np.concatenate(([start_bytes], more_S[rest_S])))
        time_C = np.cumsum(np.concatenate(([start_time], -less_S[rest_S])))
        hulls.append(_Hull(bytes_C, time_C))
    return hulls


def _steps(
    corners: Sequence[Sequence[tuple[float, float]]], items: Sequence[int]
) -> list[tuple[float, float, float, int]]:
    """Edges of the hulls of the items: (slope, bytes more, time less, item); steep ones first when sorted."""
    steps = []
    for place, index in enumerate(items):
        for (size, seconds), (larger, faster) in zip(corners[index], corners[index][1:], strict=False):
            steps.append(((faster - seconds) / (larger - size), larger - size, seconds - faster, place))
    return steps


def _rounded(problem: ChoiceProblem, items: Sequence[int]) -> float:
    """The time of a choice that fits: from the smallest options, edges of the hulls as long as they fit."""
    corners = [_corners(group) for group in problem.groups]
    corner_of = [0] * len(items)
    used = sum(corners[index][0][0] for index in items)
    edges = sorted(
        ((faster - seconds) / (larger - size), place, corner)
        for place, index in enumerate(items)
        for corner, ((size, seconds), (larger, faster)) in enumerate(
            zip(corners[index], corners[index][1:], strict=False)
        )
    )
    for _, place, corner in edges:
        hull = corners[items[place]]
        more = hull[corner + 1][0] - hull[corner][0]
        if corner_of[place] == corner and used + more <= problem.capacity:
            used, corner_of[place] = used + more, corner + 1
    return sum(corners[index][corner_of[place]][1] for place, index in enumerate(items))


def _sums(problem: ChoiceProblem, items: Sequence[int], hulls: Sequence[_Hull], best: float) -> list[_Sums]:
    """The undominated sums of the first k items that can still end within capacity and no later than `best`."""
    limit = problem.capacity * (1.0 + DUST)
    layers = [_Sums(np.zeros(1), np.zeros(1), np.full(1, -1), np.full(1, -1))]
    for place, index in enumerate(items):
        option_O2 = np.array(problem.groups[index].options)
        before, rest = layers[-1], hulls[place + 1]
        size = (before.bytes_P[:, None] + option_O2[None, :, 1]).ravel()
        seconds = (before.time_P[:, None] + option_O2[None, :, 0]).ravel()
        alive = size + rest.bytes_C[0] <= limit
        alive &= seconds + rest.bound(limit - size) <= best
        kept = np.flatnonzero(alive)
        chosen = kept[efficient(size[kept], seconds[kept])]
        last, source = chosen % len(option_O2), chosen // len(option_O2)
        layers.append(_Sums(size[chosen], seconds[chosen], last, source))
    return layers


def _read_off(problem: ChoiceProblem, items: Sequence[int], layers: Sequence[_Sums]) -> Chosen:
    """The options of the fastest sum of all items."""
    counts = [[0] * len(group.options) for group in problem.groups]
    point = int(np.argmin(layers[-1].time_P))
    for place in range(len(items) - 1, -1, -1):
        sums = layers[place + 1]
        counts[items[place]][int(sums.last_P[point])] += 1
        point = int(sums.from_P[point])
    return tuple(tuple(group) for group in counts)
