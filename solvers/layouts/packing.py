"""Bin packing of groups of slots on nodes: exact when the group sizes divide one another, and deterministic.

Sets        i in I instances, k in K nodes
Parameters  i is n_i groups of s_i slots;  a_k free slots of a node
Variables   the node of every group
(C1) groups on a node take no more than a_k slots
Of packings, those are taken whose instances lie on one node, else on few consecutive ones.
"""

import heapq
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
    free_slots: Sequence[Sequence[int]], instances: Sequence[Bundle], *, apart: Sequence[int] = ()
) -> tuple[tuple[PlacedGroup, ...], ...] | None:
    """The groups of each instance, in the order given, or None when they do not fit.

    O(log nodes) for an instance that one node holds, O(nodes) for any other.

    `free_slots[node]` lists the free slots of a node in order. Largest groups go first, each instance on one node
    with least room left over, else on the shortest run of consecutive nodes, else on the emptiest nodes; ties take the
    lowest node. Groups take slots from the front, so that a group of s starts at a multiple of s in its node's list.
    With `apart`, the kind (0, 1, ...) of each instance, all of one kind alike and in a row, one that fits on a node
    takes that with fewest of its kind, then with most room.
    Exact: packing largest-first cannot fail while the counts fit (the proof is at (C4) of the mix formulation).
    Raises PlannerError when sizes do not divide one another.
    """
    _require_chain(instances)
    nodes = _Nodes(free_slots)
    placed: list[tuple[PlacedGroup, ...]] = [()] * len(instances)
    order = sorted(range(len(instances)), key=lambda i: (-instances[i].size, -instances[i].groups, i))
    for index in order:
        instance = instances[index]
        size = instance.groups * instance.size
        near = nodes.farthest(apart[index], size, instance.groups) if apart else None
        chosen = near or nodes.fullest_with(size, instance.groups)
        if chosen is None:
            room = [slots // instance.size for slots in nodes.free]
            chosen = _run_of_nodes(nodes.free, room, instance) or _emptiest(room, instance)
        if chosen is None:
            return None
        groups = [PlacedGroup(node, tuple(nodes.take(node, instance.size))) for node in chosen]
        placed[index] = tuple(groups)
    return tuple(placed)


class _Nodes:
    """Nodes with what is free of each, found by how much that is."""

    def __init__(self, free_slots: Sequence[Sequence[int]]) -> None:
        self._slots = free_slots
        self.free = [len(slots) for slots in free_slots]
        self._by_free: list[list[int]] = [[] for _ in range(max(self.free, default=0) + 1)]  # heaps; some entries old
        for node, free in enumerate(self.free):
            self._by_free[free].append(node)
        self._kind = -1
        self._of_kind: list[tuple[int, int, int]] = []  # instances of the kind, what is free, the node

    def fullest_with(self, slots: int, groups: int) -> list[int] | None:
        """The node, once for each group, that has so many slots and least left over; the lowest of several."""
        for free in range(slots, len(self._by_free)):
            heap = self._by_free[free]
            while heap and self.free[heap[0]] != free:
                heapq.heappop(heap)
            if heap:
                return [heap[0]] * groups
        return None

    def farthest(self, kind: int, slots: int, groups: int) -> list[int] | None:
        """The node, once for each group, with so many slots and fewest of a kind; ties have most room, then are lowest.

        Instances of a kind come one after the other.
        """
        if self._kind != kind:
            self._kind, self._of_kind = kind, [(0, -free, node) for node, free in enumerate(self.free)]
            heapq.heapify(self._of_kind)
        while self._of_kind:
            near, free, node = heapq.heappop(self._of_kind)
            if slots <= -free:
                heapq.heappush(self._of_kind, (near + 1, free + slots, node))
                return [node] * groups
        return None

    def take(self, node: int, size: int) -> Sequence[int]:
        """The next slots of a node."""
        first = len(self._slots[node]) - self.free[node]
        self.free[node] -= size
        heapq.heappush(self._by_free[self.free[node]], node)
        return self._slots[node][first : first + size]


def _require_chain(instances: Sequence[Bundle]) -> None:
    sizes = sorted({instance.size for instance in instances})
    for small, large in itertools.pairwise(sizes):
        if large % small:
            raise PlannerError(f"group sizes {small} and {large} do not divide each other", where="packing")


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
