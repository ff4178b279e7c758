"""Pools decided stage by stage, the cheapest completion first; the first plan that keeps the limits is the cheapest."""

import heapq
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from planner.arrays import Floats
from planner.solvers.result import SolveResult, of_best_first
from planner.solvers.workflow.cover import CHOSEN, DEARER, LATE, Cover

SOLVER = "best-first search over pools, each simulated"
Pools = tuple[tuple[int, int], ...]
"""Option and replicas of each stage that is decided, in the order of stages."""


class PoolPlan(Protocol):
    """Pools of stages, and what else is decided of them."""

    @property
    def pools(self) -> Pools: ...


P = TypeVar("P", bound=PoolPlan)


@dataclass(frozen=True, slots=True, order=True)
class Node(Generic[P]):
    """Stages decided so far; of equal bounds the first that was pushed goes first."""

    bound: float
    number: int
    plan: P = field(compare=False)
    ready_s_R: Floats = field(compare=False)  # of requests before the last stage decided


class PoolSearch(ABC, Generic[P]):
    """Nodes by what the stages decided cost, with the least that the later ones can.

    `cover` holds what became of all combinations where the search finishes.
    """

    def __init__(self, stages: int, cover: Cover) -> None:
        self.stages, self.cover = stages, cover
        self.heap: list[Node[P]] = []
        self.pushed, self.bound = 0, 0.0  # no plan costs less than the bound

    @abstractmethod
    def begin(self) -> None:
        """Pushes the nodes of the first stage."""

    @abstractmethod
    def open(self, node: Node[P]) -> None:
        """Simulates the last stage decided, and pushes the pools of the next that can still be in time."""

    @abstractmethod
    def keeps(self, node: Node[P]) -> bool:
        """Whether a plan of all stages keeps its limits."""

    @abstractmethod
    def cost(self, plan: P) -> float:
        """Of the stages decided."""

    @abstractmethod
    def combinations(self, plan: P) -> int:
        """Of all stages, with those decided as they are."""

    def push(self, plan: P, rest: float, ready_s_R: Floats) -> None:
        """A node whose later stages cost `rest` at least."""
        self.pushed += 1
        heapq.heappush(self.heap, Node(self.cost(plan) + rest, self.pushed, plan, ready_s_R))

    def cheapest(self, time_limit_s: float) -> SolveResult[P]:
        """The cheapest plan, proven; UNKNOWN with the cost below which none keeps its limits at the time limit."""
        started_s = time.perf_counter()
        plan, reason = self._run(started_s + time_limit_s)
        value = None if plan is None else self.cost(plan)
        return of_best_first(plan, value, reason, self.bound, time.perf_counter() - started_s, SOLVER)

    def _run(self, deadline: float) -> tuple[P | None, str]:
        self.begin()
        while self.heap:
            node = heapq.heappop(self.heap)
            self.bound = node.bound
            if time.perf_counter() > deadline:
                return None, "time_limit"
            if len(node.plan.pools) < self.stages:
                self.open(node)
            elif self.keeps(node):
                self.cover.add(CHOSEN, 1, self.cost(node.plan))
                for dearer in self.heap:
                    self.cover.add(DEARER, self.combinations(dearer.plan), dearer.bound)
                return node.plan, "finished"
            else:
                self.cover.add(LATE, 1)
        return None, "finished"
