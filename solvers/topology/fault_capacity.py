"""The cheapest cluster that keeps G groups of m nodes runnable a share A of the time, through recorded faults.

Sets        a in architectures, n numbers of nodes that a can have;  t in T states of the record
Parameters  w_t seconds (or days) that state t lasts, F_t nodes down in it, of whom those below n are in the cluster
            c_a cost of a node with its links
Variables   a, n
Objective   min n c_a
(C1) sum of w_t over t with groups_a({0 .. n - 1} - F_t) >= G    >= A sum_t w_t
Method      clusters in the order of their cost, each replayed until the time that it has lost proves that (C1) fails:
            the first that keeps it is the cheapest. What is kept need not grow with n (a switch comes in whole units,
            a ring closes elsewhere), so none is left out but those with too few healthy nodes under any links.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats
from planner.errors import PlannerError
from planner.solvers.result import SolveResult, Status
from planner.solvers.topology.architectures import Architecture, Health

WHERE, SOLVER = "faults", "replay in the order of cost"
CHUNK = 256  # states that are looked at before the time lost is added up


@dataclass(frozen=True, slots=True)
class FaultTrace:
    """Times at which nodes were down; raises PlannerError for faults of no node or outside the horizon."""

    nodes: int
    horizon: float  # in the unit of the faults
    faults: tuple[tuple[int, float, float], ...]  # node, start, end

    def __post_init__(self) -> None:
        if not (self.nodes > 0 and self.horizon > 0):
            what = f"{self.nodes} nodes over a horizon of {self.horizon:g}"
            raise PlannerError(what, where=WHERE, hint="give at least one node and a time above 0")
        for number, (node, start, end) in enumerate(self.faults):
            if not 0 <= node < self.nodes:
                hint = f"nodes are 0 to {self.nodes - 1}"
                raise PlannerError(f"fault {number} is of node {node}", where=WHERE, hint=hint)
            if not 0.0 <= start <= end:
                hint = "give a start of 0 or more and an end that is no earlier"
                raise PlannerError(f"fault {number} lasts from {start:g} to {end:g}", where=WHERE, hint=hint)

    def states(self) -> tuple[Floats, Health]:
        """How long every state between two events lasts [T], in order, and which nodes are down in it [T, N]."""
        events = {edge for _, start, end in self.faults for edge in (start, end) if edge < self.horizon}
        edges = np.array(sorted(events | {0.0, self.horizon}))
        change_TN = np.zeros((len(edges), self.nodes), np.int32)
        for node, start, end in self.faults:
            if start < self.horizon:
                change_TN[np.searchsorted(edges, start), node] += 1
                change_TN[np.searchsorted(edges, min(end, self.horizon)), node] -= 1
        return np.diff(edges), np.cumsum(change_TN, axis=0)[:-1] > 0

    def mean_down(self) -> float:
        """The share of nodes that are down, on average over time."""
        spans, down = self.states()
        return float(spans @ down.mean(axis=1) / self.horizon)


@dataclass(frozen=True, slots=True)
class PricedArchitecture:
    """An architecture and what one of its nodes costs, links included."""

    name: str
    architecture: Architecture
    cost_per_node: float


@dataclass(frozen=True, slots=True)
class FaultCapacity:
    """The problem; raises PlannerError for figures that cannot be."""

    trace: FaultTrace
    architectures: tuple[PricedArchitecture, ...]
    nodes_per_group: int
    groups: int
    availability: float  # share of the time that the groups must be runnable

    def __post_init__(self) -> None:
        if not self.architectures or self.nodes_per_group < 1 or self.groups < 1:
            what = f"{self.groups} groups of {self.nodes_per_group} nodes on {len(self.architectures)} architectures"
            raise PlannerError(what, where=WHERE, hint="give at least one of each")
        if not 0.0 < self.availability <= 1.0:
            what = f"groups are to run {self.availability:g} of the time"
            raise PlannerError(what, where=WHERE, hint="give a share above 0 and at most 1")
        for each in self.architectures:
            if not each.cost_per_node >= 0.0:
                what = f"a node of `{each.name}` costs {each.cost_per_node:g}"
                raise PlannerError(what, where=WHERE, hint="give a cost of 0 or more")


@dataclass(frozen=True, slots=True)
class Cluster:
    """An architecture by its place, a number of nodes, and the share of the time that the groups run on them."""

    architecture: int
    nodes: int
    availability: float


def availability(
    trace: FaultTrace, architecture: Architecture, nodes: int, *, nodes_per_group: int, groups: int
) -> float:
    """The share of the time that `groups` groups can run on the first `nodes` nodes of the trace."""
    spans_T, down_TN = trace.states()
    enough_T = architecture.count(~down_TN[:, :nodes], nodes_per_group) >= groups
    return _kept(spans_T, enough_T) / trace.horizon


def cheapest_cluster(problem: FaultCapacity) -> SolveResult[Cluster]:
    """The cheapest cluster within the nodes of the trace; INFEASIBLE where none keeps the groups often enough."""
    started_s = time.perf_counter()
    spans_T, down_TN = problem.trace.states()
    order = np.argsort(-spans_T)  # long states prove first that a cluster loses too much
    for cost, place, nodes in _by_cost(problem):
        architecture = problem.architectures[place].architecture
        if not _may_keep(problem, architecture, spans_T[order], down_TN[order, :nodes]):
            continue
        enough_T = architecture.count(~down_TN[:, :nodes], problem.nodes_per_group) >= problem.groups
        share = _kept(spans_T, enough_T) / problem.trace.horizon
        if share >= problem.availability:
            cluster = Cluster(place, nodes, share)
            return SolveResult(Status.OPTIMAL, "finished", cluster, cost, cost, time.perf_counter() - started_s, SOLVER)
    return SolveResult(Status.INFEASIBLE, "finished", None, None, None, time.perf_counter() - started_s, SOLVER)


def _by_cost(problem: FaultCapacity) -> Iterator[tuple[float, int, int]]:
    """(cost, place of the architecture, nodes) of every cluster with nodes enough, cheapest first."""
    least = problem.groups * problem.nodes_per_group
    return iter(
        sorted(
            (nodes * priced.cost_per_node, place, nodes)
            for place, priced in enumerate(problem.architectures)
            for nodes in priced.architecture.sizes(problem.trace.nodes)
            if nodes >= least
        )
    )


def _may_keep(problem: FaultCapacity, architecture: Architecture, spans_T: Floats, down_TN: Health) -> bool:
    """False where the time lost in the states looked at, the first ones first, is more than may be lost."""
    may_lose = (1.0 - problem.availability) * problem.trace.horizon * (1.0 + 1e-9) + 1e-12
    healthy_TN = ~down_TN
    some = healthy_TN.sum(axis=1) >= problem.groups * problem.nodes_per_group
    lost = float(spans_T[~some].sum())
    spans_T, healthy_TN = spans_T[some], healthy_TN[some]
    for first in range(0, len(spans_T), CHUNK):
        if lost > may_lose:
            return False
        part = slice(first, first + CHUNK)
        enough = architecture.count(healthy_TN[part], problem.nodes_per_group) >= problem.groups
        lost += float(spans_T[part][~enough].sum())
    return lost <= may_lose


def _kept(spans_T: Floats, enough_T: Sequence[bool] | Health) -> float:
    """The time of the states in which there are enough groups, added up in their order."""
    kept = 0.0
    for span, enough in zip(spans_T.tolist(), enough_T, strict=True):
        kept += span if enough else 0.0
    return kept
