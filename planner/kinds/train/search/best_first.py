"""Best-first branch and bound on two levels: nodes whose bounds are known beforehand, and leaves that these open.

The node or leaf with the least bound is next. The search ends when the least bound left is no less than the best value,
so that what is left out is proven to hold nothing better.
"""

import heapq
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from planner.arrays import Bools, Floats, Ints
from planner.progress import Limits

DUST = 1e-9
COMPUTING, EXCHANGE, RECOMPUTATION = "computing", "computing and exchange", "recomputation"
"""Bounds, by what they take into account."""
DOMINATED = "no better anywhere than another of its kind"


class Bounded(Protocol):
    """What waits in the queue of leaves."""

    @property
    def bounded_by(self) -> str:
        """What its bound takes into account."""
        ...


L = TypeVar("L", bound=Bounded)


@dataclass(slots=True)
class Tally:
    """What became of the candidates: a candidate is a combination of all axes but recomputation and layout."""

    candidates: int = 0
    illegal: dict[str, int] = field(default_factory=dict)
    bounded: dict[str, int] = field(default_factory=dict)
    unfit: int = 0
    evaluated: int = 0

    def leave(self, reason: str, number: int) -> None:
        """Candidates left out by a bound."""
        if number:
            self.bounded[reason] = self.bounded.get(reason, 0) + number

    def add(self, other: "Tally") -> None:
        """The candidates of another search as well."""
        self.candidates += other.candidates
        self.unfit += other.unfit
        self.evaluated += other.evaluated
        for name, number in other.bounded.items():
            self.leave(name, number)
        for name, number in other.illegal.items():
            self.illegal[name] = self.illegal.get(name, 0) + number


class BestFirst(ABC, Generic[L]):
    """One search. Subclasses bound the nodes with `set_nodes`, push leaves where a node is opened, and lower `value`.

    A `value` given beforehand has to be beaten.
    """

    def __init__(self, tell: Callable[[str], None], value: float = float("inf")) -> None:
        self.tell, self.value = tell, value
        self.tally = Tally()
        self.heap: list[tuple[float, int, L]] = []
        self.order = count()
        self.set_nodes(np.zeros(0), np.zeros(0, np.int64))

    def set_nodes(
        self,
        bound_N: Floats,
        children_N: Ints,
        kept_N: Bools | None = None,
    ) -> None:
        """The nodes, each with its bound and the candidates below it; those not kept are dominated by others."""
        self.bound_N, self.children_N = bound_N, children_N
        kept = np.arange(len(bound_N)) if kept_N is None else np.flatnonzero(kept_N)
        self.queue = kept[np.argsort(bound_N[kept], kind="stable")]
        self.opened = 0  # of the queue
        self.tally.candidates = int(children_N.sum())
        self.tally.leave(DOMINATED, self.tally.candidates - int(children_N[kept].sum()))

    @abstractmethod
    def open(self, node: int) -> None:
        """Push the leaves of a node."""

    @abstractmethod
    def play(self, leaf: L) -> None:
        """Lower `value` by a leaf, or push what is left of it."""

    @property
    def least_left(self) -> float:
        """The least bound of what waits."""
        return min(self._node_bound(), self._leaf_bound())

    @property
    def bound(self) -> float:
        """What no candidate is below."""
        return min(self.least_left, self.value)

    def step(self) -> None:
        """Open the node, or play the leaf, with the least bound."""
        if self._node_bound() <= self._leaf_bound():
            self.open(int(self.queue[self.opened]))
            self.opened += 1
        else:
            self.play(heapq.heappop(self.heap)[2])

    def close(self) -> None:
        """Count what waits as left out by its bound."""
        self.tally.leave(COMPUTING, int(self.children_N[self.queue[self.opened :]].sum()))
        for _, _, leaf in self.heap:
            self.tally.leave(leaf.bounded_by, 1)

    def push(self, bound: float, leaf: L) -> None:
        """A leaf into the queue, unless its bound leaves it out."""
        if bound < self.value * (1.0 - DUST):
            heapq.heappush(self.heap, (bound, next(self.order), leaf))
        else:
            self.tally.leave(leaf.bounded_by, 1)

    def _node_bound(self) -> float:
        return float(self.bound_N[self.queue[self.opened]]) if self.opened < len(self.queue) else float("inf")

    def _leaf_bound(self) -> float:
        return self.heap[0][0] if self.heap else float("inf")


def prove(searches: Sequence[BestFirst[Any]], limits: Limits) -> str:
    """Search on wherever the least bound is left, until no search can beat the best value of all; why it stopped.

    Every search has the best value of all from then on.
    """
    ends_at = None if limits.time_limit_s is None else time.perf_counter() + limits.time_limit_s
    reason, best = "finished", min(search.value for search in searches)
    while True:
        search = min(searches, key=lambda one: one.least_left)
        if search.least_left >= best * (1.0 - max(DUST, limits.gap)):
            break
        if ends_at is not None and time.perf_counter() > ends_at:
            reason = "time_limit"
            break
        search.value = best
        search.step()
        best = search.value
    for search in searches:
        search.value = best
        search.close()
    return reason
