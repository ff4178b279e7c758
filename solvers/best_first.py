"""Best-first branch and bound on two levels (Lawler and Wood, Operations Research 14, 1966, section 3).

Nodes have bounds that are known beforehand; a node that is opened gives leaves, each with a bound of its own; a leaf
that is closed gives a value, or is pushed again with a larger bound. The node or leaf with the least bound is next,
leaves before nodes where bounds are equal. The search ends when the least bound left is no less than the best value, so
that what is left out is proven to hold nothing better. Array suffix: N node.
"""

import heapq
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import count
from math import isinf
from typing import Any, Generic, TypeVar

import numpy as np

from planner.arrays import Bools, Floats

FIRST_NODES = 64
"""Nodes that a search opens at most for its first value, before the others have their turn."""

L = TypeVar("L")


class BestFirst(ABC, Generic[L]):
    """One search for the least value. Subclasses push leaves where a node is opened, and lower `value` by a leaf.

    A `value` given beforehand has to be improved on, by more than the share `margin` of it.
    """

    def __init__(self, value: float = float("inf"), margin: float = 0.0) -> None:
        self.value, self.margin = value, margin
        self.heap: list[tuple[float, int, L]] = []
        self.order = count()
        self.set_nodes(np.zeros(0))

    def set_nodes(self, bound_N: Floats, kept_N: Bools | None = None) -> None:
        """The nodes by their bounds; those not kept are left out."""
        self.bound_N = bound_N
        kept = np.arange(len(bound_N)) if kept_N is None else np.flatnonzero(kept_N)
        self.queue = kept[np.argsort(bound_N[kept], kind="stable")]
        self.opened = 0  # of the queue

    @abstractmethod
    def open(self, node: int) -> None:
        """Push the leaves of a node."""

    @abstractmethod
    def close(self, leaf: L) -> None:
        """Lower `value` by a leaf, or push what is left of it."""

    def leave(self, leaf: L, bound: float) -> None:
        """Told of every leaf that its bound leaves out as it is pushed."""

    def push(self, bound: float, leaf: L) -> None:
        """A leaf into the queue, unless its bound leaves it out."""
        if bound < self.value * (1.0 - self.margin):
            heapq.heappush(self.heap, (bound, next(self.order), leaf))
        else:
            self.leave(leaf, bound)

    @property
    def least_left(self) -> float:
        """The least bound of what waits."""
        return min(self._node_bound(), self._leaf_bound())

    @property
    def bound(self) -> float:
        """What no solution is below."""
        return min(self.least_left, self.value)

    def step(self) -> None:
        """Open the node, or close the leaf, with the least bound."""
        if self._node_bound() < self._leaf_bound():
            self.open(int(self.queue[self.opened]))
            self.opened += 1
        else:
            self.close(heapq.heappop(self.heap)[2])

    def dive(self, most: int) -> None:
        """Close leaves, the one with the least bound first, until the value falls or `most` are closed."""
        value = self.value
        for _ in range(most):
            if self.value < value or self._leaf_bound() >= value * (1.0 - self.margin):
                return
            self.close(heapq.heappop(self.heap)[2])

    def begin(self, dives: int, nodes: int, deadline: float) -> None:
        """Advance until the value falls, `nodes` are open or the deadline is past."""
        value = self.value
        while self.value >= value and self.opened < nodes and self.least_left < value * (1.0 - self.margin):
            if time.perf_counter() > deadline:
                return
            self.advance(dives)

    def advance(self, dives: int) -> None:
        """A step, and a dive of `dives` leaves where it opened one of the nodes 1, 2, 4, ..."""
        opened = self.opened
        self.step()
        if self.opened > opened and self.opened & opened == 0:
            self.dive(dives)

    def _node_bound(self) -> float:
        return float(self.bound_N[self.queue[self.opened]]) if self.opened < len(self.queue) else float("inf")

    def _leaf_bound(self) -> float:
        return self.heap[0][0] if self.heap else float("inf")


def search_all(searches: Sequence[BestFirst[Any]], gap: float, deadline: float, dives: int = 0) -> str:
    """Search on wherever the least bound is left, until no search can beat the best value of all; why it stopped.

    `gap` is the share of the best value that may stay unproven; `deadline` is one of `time.perf_counter`. Every search
    ends with the best value of all, and goes on from there where it is searched again. With `dives`, searches have
    values early: each in turn is begun until it has one or `FIRST_NODES` nodes are open, and goes on with dives of so
    many leaves; what is closed out of turn is what waits, so that bounds stay those of the rest.
    """
    best = min(search.value for search in searches)
    for search in (search for search in searches if dives and not search.opened):
        search.value = best
        search.begin(dives, FIRST_NODES, deadline)
        best = search.value
    while True:
        search = min(searches, key=lambda candidate: candidate.least_left)
        if isinf(search.least_left) or search.least_left >= best * (1.0 - gap):
            reason = "finished"
            break
        if time.perf_counter() > deadline:
            reason = "time_limit"
            break
        search.value = best
        search.advance(dives)
        best = search.value
    for search in searches:
        search.value = best
    return reason
