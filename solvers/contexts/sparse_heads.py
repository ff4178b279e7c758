"""Heads of unlike sparsity on groups of ranks: the fullest group as light as can be, and the sizes of groups.

Source: DSV (arXiv:2502.07590), section 7: head ranks times sequence ranks, heads by longest first.
Sets        h in H heads; layouts l, each with G_l groups
Parameters  v_lh [s] of head h in a group of layout l, o_l [s] of the layout;  c_lh [bytes] held, M [bytes] of a GPU
Variables   the layout, and the group of each head
Minimise    o_l + the largest sum of v_lh over a group
(C1) sum of c_lh over a group <= M
Bound       of a layout: the mean of its groups, its largest head, and the k + 1 lightest of the k G + 1 heaviest heads,
            two of which share a group with k - 1 others
Method      layouts by their bound: annealing by moves and exchanges, then group after group depth first, each with the
            heaviest head that is left, and closed only where what is left fits the other groups below the best; layouts
            whose bound is no better than the best are not tried.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats, Ints
from planner.errors import PlannerError
from planner.solvers.result import SolveResult, Status

WHERE, SOLVER = "sparse heads", "annealing, then depth first"
ANNEALED, STARTS = 100_000, 4


@dataclass(frozen=True, slots=True)
class HeadLayout:
    """One choice of group sizes: what each head takes in it."""

    name: str
    groups: int
    seconds_H: Floats
    held_bytes_H: Floats
    own_s: float = 0.0

    def __post_init__(self) -> None:
        if self.groups < 1 or len(self.seconds_H) != len(self.held_bytes_H) or not len(self.seconds_H):
            raise PlannerError(f"layout `{self.name}` has no groups or heads", where=WHERE, hint="give one of each")
        if min(self.seconds_H.min(), self.held_bytes_H.min(), self.own_s) < 0:
            raise PlannerError(f"layout `{self.name}` takes less than nothing", where=WHERE, hint="give 0 or more")

    @property
    def bound_s(self) -> float:
        """Seconds that no placement is below."""
        heaviest = np.sort(self.seconds_H)[::-1]
        least = max(float(heaviest.sum()) / self.groups, float(heaviest[0]))
        for turn in range(1, (len(heaviest) - 1) // self.groups + 1):
            head = turn * self.groups
            least = max(least, float(heaviest[head - turn : head + 1].sum()))
        return least + self.own_s


@dataclass(frozen=True, slots=True)
class HeadPlacement:
    """The index of the layout, and the group of each head."""

    layout: int
    group_of_head: tuple[int, ...]


def place_heads(
    layouts: Sequence[HeadLayout], memory_bytes: float, *, seed: int = 0, most_nodes: int = 20_000_000
) -> SolveResult[HeadPlacement]:
    """The best layout and placement; proven where the search of every layout that could be better came to its end.

    INFEASIBLE where it is proven that heads fit no layout.
    """
    started = time.perf_counter()
    best: HeadPlacement | None = None
    best_s, bound_s, left = math.inf, math.inf, most_nodes
    for index in sorted(range(len(layouts)), key=lambda index: layouts[index].bound_s):
        layout = layouts[index]
        if layout.bound_s >= best_s * (1.0 - 1e-12):
            break
        group_H, proven, nodes = _placed(layout, memory_bytes, best_s - layout.own_s, seed, left)
        left = max(0, left - nodes)
        if group_H is not None:
            best = HeadPlacement(index, group_H)
            best_s = fullest_s(layout, group_H)
        if not proven:
            bound_s = min(bound_s, layout.bound_s)
    spent_s = time.perf_counter() - started
    stop = "finished" if bound_s == math.inf else "node_limit"
    if best is None:
        status = Status.INFEASIBLE if bound_s == math.inf else Status.UNKNOWN
        return SolveResult(status, stop, None, None, None if bound_s == math.inf else bound_s, spent_s, SOLVER)
    bound_s = min(bound_s, best_s)
    status = Status.OPTIMAL if bound_s >= best_s * (1.0 - 1e-9) else Status.FEASIBLE
    return SolveResult(status, stop, best, best_s, bound_s, spent_s, SOLVER)


def fullest_s(layout: HeadLayout, group_of_head: Sequence[int]) -> float:
    """Seconds of the fullest group, the layout's own among them."""
    return layout.own_s + float(np.bincount(group_of_head, layout.seconds_H, layout.groups).max())


def _placed(
    layout: HeadLayout, memory_bytes: float, cutoff_s: float, seed: int, most_nodes: int
) -> tuple[tuple[int, ...] | None, bool, int]:
    """Groups of heads below `cutoff_s` or None, whether they are proven to be the best, and nodes that it took."""
    from planner.solvers.compiled.samples.heads import anneal_heads, least_by_groups

    order = np.argsort(-layout.seconds_H, kind="stable")
    value_H, held_H = layout.seconds_H[order], layout.held_bytes_H[order]
    best: tuple[int, ...] | None = None
    best_s = cutoff_s
    steps = min(ANNEALED, 4_000 * len(order))
    for start in range(STARTS):
        group_H = _longest_first(value_H, layout.groups)
        span = float(anneal_heads(value_H, held_H, memory_bytes, group_H, layout.groups, steps, seed + start))
        if span < best_s:
            best, best_s = _in_order(group_H, order), span
    least_s = layout.bound_s - layout.own_s
    if best is not None and best_s <= least_s * (1.0 + 1e-12):
        return best, True, 0
    group_H = np.zeros(len(order), np.int64)
    cutoff = best_s if math.isfinite(best_s) else float(value_H.sum()) * 2.0 + 1.0
    span, nodes = least_by_groups(value_H, held_H, memory_bytes, layout.groups, cutoff, most_nodes, group_H)
    if span < cutoff:
        best = _in_order(group_H, order)
    return best, nodes <= most_nodes, int(nodes)


def _longest_first(value_H: Floats, groups: int) -> Ints:
    """Each head, heaviest first, in the lightest group."""
    load_G, group_H = np.zeros(groups), np.zeros(len(value_H), np.int64)
    for head, value in enumerate(value_H):
        group_H[head] = int(np.argmin(load_G))
        load_G[group_H[head]] += value
    return group_H


def _in_order(group_H: Ints, order: Ints) -> tuple[int, ...]:
    placed = [0] * len(order)
    for at, head in enumerate(order):
        placed[int(head)] = int(group_H[at])
    return tuple(placed)
