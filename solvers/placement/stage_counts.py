"""Stages of one model over unequal nodes, by counts of nodes that are alike: which cover so many layers with a flow.

The nodes that make a stage of k layers are counted by type, and a dynamic program over counts covers layers by the
shortest path (`layers`, method).
"""

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from planner.arrays import Floats, Ints
from planner.solvers.placement.layer_problem import DUST, LayerProblem, rate_of, work_of

MOST_STATES = 60_000  # counts of nodes by type; beyond, small types are left out of stages


def types_of(problem: LayerProblem, nodes: Sequence[int]) -> list[tuple[int, ...]]:
    """Nodes that are alike, of some; small types are left out where there are too many counts."""
    types = [tuple(i for i in alike if i in set(nodes)) for alike in problem.types]
    types = [alike for alike in types if alike]
    while math.prod(len(alike) + 1 for alike in types) > MOST_STATES:
        types.remove(min(types, key=lambda alike: len(alike) * work_of(problem.nodes[alike[0]])))
    return types


def stages_of(
    problem: LayerProblem, types: Sequence[tuple[int, ...]], flow: float, layers: int | None = None
) -> list[tuple[int, tuple[int, ...]]] | None:
    """Stages, by layers and nodes of each type, that cover the layers with this flow on a short enough path."""
    layers = problem.layers if layers is None else layers
    rows = list(_makes(problem, types, flow))
    if not rows:
        return None
    count_T, length_C, used_CT, least, last = _paths(problem, types, rows)
    state = int(np.argmin(least[:, layers]))
    if least[state, layers] > problem.longest_path * (1.0 + DUST) or math.isinf(least[state, layers]):
        return None
    radix = np.concatenate([[1], np.cumprod(count_T + 1)[:-1]])
    chosen, covered = [], layers
    while covered:
        c = int(last[state, covered])
        chosen.append(rows[c])
        state -= int(radix @ used_CT[c])
        covered -= int(length_C[c])
    return chosen[::-1]


def reached(problem: LayerProblem, types: Sequence[tuple[int, ...]], flow: float) -> list[float]:
    """The shortest path over stages that cover 0, 1, 2, ... layers with this flow, as far as the nodes do."""
    rows = list(_makes(problem, types, flow))
    if not rows:
        return [0.0]
    least = _paths(problem, types, rows)[3].min(axis=0)
    return [0.0, *itertools.takewhile(math.isfinite, least[1:].tolist())]


def _paths(
    problem: LayerProblem, types: Sequence[tuple[int, ...]], rows: Sequence[tuple[int, tuple[int, ...]]]
) -> tuple[Ints, Ints, Ints, Floats, Ints]:
    """Nodes of the types, layers and nodes of the stages, and by counts and layers the shortest path and its last."""
    from planner.solvers.compiled import layer_stages

    count_T = np.array([len(alike) for alike in types], dtype=np.int64)
    length_C = np.array([length for length, _ in rows], dtype=np.int64)
    used_CT = np.array([used for _, used in rows], dtype=np.int64)
    slowest = [max(problem.nodes[types[t][0]].layer_path for t, c in enumerate(used) if c) for _, used in rows]
    path_C = problem.hop_path + length_C * np.array(slowest)
    least, last = layer_stages.shortest_paths(count_T, problem.layers, length_C, used_CT, path_C)
    return count_T, length_C, used_CT, least, last


def _makes(
    problem: LayerProblem, types: Sequence[tuple[int, ...]], flow: float
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Every length of a stage, with the fewest nodes of each type that give the flow together."""
    longest = max(len(problem.nodes[alike[0]].tokens_per_s) for alike in types)
    for length in range(1, min(longest, problem.layers) + 1):
        rates = [rate_of(problem.nodes[alike[0]], length) for alike in types]
        yield from ((length, used) for used in _fewest(rates, [len(alike) for alike in types], flow))


def _fewest(rates: Sequence[float], counts: Sequence[int], flow: float) -> Iterator[tuple[int, ...]]:
    """Numbers of each type that come to the flow, of which none can be less."""
    (rate, *others), (count, *more) = rates, counts
    if not others:
        number = math.ceil(flow / rate * (1.0 - DUST)) if rate > 0.0 else (0 if flow <= 0.0 else count + 1)
        if max(number, 0) <= count:
            yield (max(number, 0),)
        return
    for number in range(count + 1 if rate > 0.0 else 1):
        left = flow - number * rate
        for rest in _fewest(others, more, max(left, 0.0)):
            least = min((r for r, c in zip(others, rest, strict=True) if c), default=math.inf)
            spare = number * rate + sum(r * c for r, c in zip(others, rest, strict=True)) - flow
            if number == 0 or spare < min(rate, least):
                yield (number, *rest)
        if left <= 0.0:
            return
