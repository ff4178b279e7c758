"""Stages of one model over unequal nodes, by counts of nodes that are alike: which cover so many layers with a flow.

The nodes that make a stage of k layers are counted by type, and a dynamic program over counts covers layers by the
shortest path (`aligned`, method).
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats, Ints
from planner.solvers.placement.layers.problem import DUST, LayerProblem, rate_of, work_of

MOST_STATES = 60_000  # counts of nodes by type; beyond, small types are left out of stages


def types_of(problem: LayerProblem, nodes: Sequence[int]) -> list[tuple[int, ...]]:
    """Nodes that are alike, of some; small types are left out where there are too many counts."""
    types = [tuple(i for i in alike if i in set(nodes)) for alike in problem.types]
    types = [alike for alike in types if alike]
    while math.prod(len(alike) + 1 for alike in types) > MOST_STATES:
        types.remove(min(types, key=lambda alike: len(alike) * work_of(problem.nodes[alike[0]])))
    return types


@dataclass(frozen=True, slots=True, eq=False)
class StageTable:
    """Stages that give a flow [C], and what they cover: shortest path and last stage by counts of nodes and layers."""

    length_C: Ints
    used_CT: Ints
    count_T: Ints
    least_SL: Floats
    last_SL: Ints

    def reach(self) -> list[float]:
        """The shortest path that covers 0, 1, 2, ... layers, as far as the nodes do."""
        return [0.0, *itertools.takewhile(math.isfinite, self.least_SL.min(axis=0)[1:].tolist())]

    def stages(self, layers: int, longest_path: float) -> list[tuple[int, tuple[int, ...]]] | None:
        """Stages that cover so many layers, by layers and nodes of each type; None where their path is too long."""
        state = int(np.argmin(self.least_SL[:, layers]))
        if self.least_SL[state, layers] > longest_path * (1.0 + DUST) or math.isinf(self.least_SL[state, layers]):
            return None
        radix = np.concatenate([[1], np.cumprod(self.count_T + 1)[:-1]])
        chosen, covered = [], layers
        while covered:
            c = int(self.last_SL[state, covered])
            chosen.append((int(self.length_C[c]), tuple(self.used_CT[c].tolist())))
            state -= int(radix @ self.used_CT[c])
            covered -= int(self.length_C[c])
        return chosen[::-1]


def stage_table(problem: LayerProblem, types: Sequence[tuple[int, ...]], flow: float) -> StageTable:
    """All stages of these nodes that give a flow, and what they cover."""
    from planner.solvers.compiled import layer_stages

    count_T = np.array([len(alike) for alike in types], dtype=np.int64)
    nodes = [problem.nodes[alike[0]] for alike in types]
    lengths = range(1, min(max(len(node.tokens_per_s) for node in nodes), problem.layers) + 1)
    used = [fewest(np.array([rate_of(node, length) for node in nodes]), count_T, flow) for length in lengths]
    used_CT = np.concatenate(used)
    length_C = np.repeat(np.array(lengths), [len(rows) for rows in used])
    slowest_C = np.where(used_CT > 0, np.array([node.layer_path for node in nodes]), 0.0).max(axis=1)
    path_C = problem.hop_path + length_C * slowest_C
    least, last = layer_stages.shortest_paths(count_T, problem.layers, length_C, used_CT, path_C)
    return StageTable(length_C, used_CT, count_T, least, last)


def stages_of(
    problem: LayerProblem, types: Sequence[tuple[int, ...]], flow: float
) -> list[tuple[int, tuple[int, ...]]] | None:
    """Stages that cover all layers with this flow on a short enough path."""
    return stage_table(problem, types, flow).stages(problem.layers, problem.longest_path)


def fewest(rate_T: Floats, count_T: Ints, flow: float) -> Ints:
    """Numbers of each type that come to the flow, above 0, of which none can be less; in ascending order. [C, T]"""
    most_T = np.where(rate_T > 0.0, count_T, 0)
    used_CT = np.indices(tuple(most_T[:-1] + 1)).reshape(len(rate_T) - 1, int(np.prod(most_T[:-1] + 1))).T
    enough = flow * (1.0 - DUST)
    left_C = np.maximum(enough - used_CT @ rate_T[:-1], 0.0)
    if rate_T[-1] > 0.0:
        last_C = np.ceil(left_C / rate_T[-1]).astype(np.int64)
    else:
        last_C = np.where(left_C > 0.0, count_T[-1] + 1, 0)
    used_CT = np.concatenate([used_CT, last_C[:, None]], axis=1)[last_C <= count_T[-1]]
    smallest_C = np.where(used_CT[:, :-1] > 0, rate_T[:-1], np.inf).min(axis=1, initial=np.inf)
    return np.asarray(used_CT[used_CT @ rate_T - smallest_C < enough])
