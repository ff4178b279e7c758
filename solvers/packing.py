"""Bin packing of groups of slots on nodes: exact when the group sizes divide one another, and deterministic.

Sets        i in I instances, k in K nodes
Parameters  i is n_i groups of s_i slots;  a_k free slots of a node
Variables   the node of every group
(C1) groups on a node take no more than a_k slots
Of packings, those are taken whose instances lie on one node, else on few consecutive ones.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from planner.errors import PlannerError


@dataclass(frozen=True, slots=True)
class Bundle:
    """`groups` groups of `size` slots, each inside one node."""

    groups: int
    size: int


@dataclass(frozen=True, slots=True)
class PlacedGroup:
    """One placed group: its node, and the slots it takes there."""

    node: int
    slots: tuple[int, ...]


def pack(
    free_slots: Sequence[Sequence[int]], instances: Sequence[Bundle]
) -> tuple[tuple[PlacedGroup, ...], ...] | None:
    """The groups of each instance, in the order given, or None when they do not fit; O(instances x nodes).

    `free_slots[node]` lists the free slots of a node in order. Largest groups go first, each instance on one node
    with least room left over, else on the shortest run of consecutive nodes, else on the emptiest nodes; ties take the
    lowest node. Groups take slots from the front, so that a group of s starts at a multiple of s in its node's list.
    Exact: packing largest-first cannot fail while the counts fit (the proof is at (C4) of the mix formulation).
    Raises PlannerError when sizes do not divide one another.
    """
    _require_chain(instances)
    used = [0] * len(free_slots)
    placed: list[tuple[PlacedGroup, ...]] = [()] * len(instances)
    order = sorted(range(len(instances)), key=lambda i: (-instances[i].size, -instances[i].groups, i))
    for index in order:
        instance = instances[index]
        free = [len(slots) - taken for slots, taken in zip(free_slots, used, strict=True)]
        room = [slots // instance.size for slots in free]
        chosen = _one_node(free, room, instance) or _run_of_nodes(free, room, instance) or _emptiest(room, instance)
        if chosen is None:
            return None
        groups = []
        for node in chosen:
            first = used[node]
            used[node] += instance.size
            groups.append(PlacedGroup(node, tuple(free_slots[node][first : used[node]])))
        placed[index] = tuple(groups)
    return tuple(placed)


def _require_chain(instances: Sequence[Bundle]) -> None:
    sizes = sorted({instance.size for instance in instances})
    for small, large in itertools.pairwise(sizes):
        if large % small:
            raise PlannerError(f"group sizes {small} and {large} do not divide each other", where="packing")


def _one_node(free: Sequence[int], room: Sequence[int], instance: Bundle) -> list[int] | None:
    """The node that holds all groups with least room left over."""
    able = [(free[node], node) for node in range(len(free)) if room[node] >= instance.groups]
    return [min(able)[1]] * instance.groups if able else None


def _run_of_nodes(free: Sequence[int], room: Sequence[int], instance: Bundle) -> list[int] | None:
    """The shortest run of consecutive nodes with room for all groups; ties leave least room over, then start lowest."""
    best: tuple[int, int, int] | None = None
    start = total = 0
    for end in range(len(room)):
        if room[end] == 0:
            start, total = end + 1, 0
            continue
        total += room[end]
        while total - room[start] >= instance.groups:
            total -= room[start]
            start += 1
        if total >= instance.groups:
            run = (end + 1 - start, sum(free[start : end + 1]), start)
            best = run if best is None else min(best, run)
    return None if best is None else _fill(range(best[2], best[2] + best[0]), room, instance)


def _emptiest(room: Sequence[int], instance: Bundle) -> list[int] | None:
    """The fewest nodes with room for all groups, wherever they are."""
    if sum(room) < instance.groups:
        return None
    return _fill(sorted(range(len(room)), key=lambda node: (-room[node], node)), room, instance)


def _fill(nodes: Sequence[int], room: Sequence[int], instance: Bundle) -> list[int]:
    """The node of each group when `nodes` are filled in order."""
    return [node for node in nodes for _ in range(room[node])][: instance.groups]
