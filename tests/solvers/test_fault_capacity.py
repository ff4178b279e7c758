"""The cheapest cluster against a replay of every size by its definition; traces and bad input."""

import math

import numpy as np
import pytest

from planner.errors import PlannerError
from planner.solvers.result import Status
from planner.solvers.topology.architectures import FixedRings, KHopRing, Switch
from planner.solvers.topology.fault_capacity import (
    FaultCapacity,
    FaultTrace,
    PricedArchitecture,
    availability,
    cheapest_cluster,
)

M = 2
KINDS = (("switch", 3), ("ring", 2), ("fixed", 0), ("one switch", 0))


def problem_of(seed: int) -> FaultCapacity:
    draws = np.random.default_rng(seed)
    nodes = int(draws.integers(6, 16))
    faults = []
    for _ in range(int(draws.integers(0, 12))):
        start = float(draws.integers(0, 20))
        faults.append((int(draws.integers(0, nodes)), start, start + float(draws.integers(0, 8))))
    kinds = {"switch": Switch(3), "ring": KHopRing(2), "fixed": FixedRings(), "one switch": Switch()}
    priced = tuple(PricedArchitecture(n, kinds[n], float(draws.integers(10, 16))) for n, _ in KINDS)
    trace = FaultTrace(nodes, 24.0, tuple(faults))
    return FaultCapacity(trace, priced, M, int(draws.integers(1, 5)), float(draws.choice([0.5, 0.8, 0.95, 1.0])))


def groups_by_hand(kind: str, up: list[int], nodes: int) -> int:
    """Groups of two: pairs of a unit, of neighbours in a fixed place, or of healthy nodes at most two apart."""
    if kind == "one switch":
        return len(up) // M
    if kind == "switch":
        return sum(sum(node // 3 == unit for node in up) // M for unit in range(nodes // 3))
    if kind == "fixed":
        return sum(2 * pair in up and 2 * pair + 1 in up for pair in range(nodes // 2))
    best = 0
    for first in range(nodes):  # cut the ring everywhere and take pairs as they come
        order = sorted(up, key=lambda node: (node - first) % nodes)
        taken, place = 0, 0
        while place + 1 < len(order):
            close = min((order[place + 1] - order[place]) % nodes, (order[place] - order[place + 1]) % nodes) <= 2
            taken, place = taken + close, place + 1 + close
        best = max(best, taken)
    return best


def share_by_hand(problem: FaultCapacity, kind: str, nodes: int) -> float:
    """Every quarter of an hour looked at: faults start and end on whole hours."""
    good = 0
    for step in range(96):
        now = step / 4 + 0.125
        down = {node for node, start, end in problem.trace.faults if start <= now < end}
        good += groups_by_hand(kind, [n for n in range(nodes) if n not in down], nodes) >= problem.groups
    return good / 96


@pytest.mark.parametrize("seed", range(100))
def test_no_cluster_that_keeps_its_groups_is_cheaper(seed: int) -> None:
    problem = problem_of(seed)
    least = math.inf
    for place, (kind, unit) in enumerate(KINDS):
        for nodes in range(1, problem.trace.nodes + 1):
            cost = nodes * problem.architectures[place].cost_per_node
            whole = nodes % (unit if kind == "switch" else 1) == 0
            if cost < least and whole and share_by_hand(problem, kind, nodes) >= problem.availability:
                least = cost
    result = cheapest_cluster(problem)
    if math.isinf(least):
        assert result.status is Status.INFEASIBLE
        return
    assert result.solution is not None
    assert result.objective == result.bound == least
    kind = KINDS[result.solution.architecture][0]
    assert result.solution.availability == pytest.approx(share_by_hand(problem, kind, result.solution.nodes))


def test_what_a_switch_keeps_does_not_grow_with_every_node() -> None:
    trace = FaultTrace(8, 10.0, ((0, 0.0, 5.0),))
    shares = [availability(trace, Switch(4), n, nodes_per_group=4, groups=1) for n in (4, 8)]
    assert shares == [0.5, 1.0]
    assert trace.mean_down() == pytest.approx(0.5 / 8)


@pytest.mark.parametrize(
    ("faults", "says"),
    [
        (((9, 0.0, 1.0),), "fault 0 is of node 9\n.*nodes are 0 to 3"),
        (((0, 2.0, 1.0),), "fault 0 lasts from 2 to 1"),
        (((0, -1.0, 1.0),), "fault 0 lasts from -1 to 1"),
        (((0, float("nan"), 1.0),), "fault 0 lasts from nan to 1"),
    ],
)
def test_faults_that_cannot_be_are_refused(faults: tuple[tuple[int, float, float], ...], says: str) -> None:
    with pytest.raises(PlannerError, match=says):
        FaultTrace(4, 10.0, faults)


def test_figures_of_clusters_that_cannot_be_are_refused() -> None:
    trace = FaultTrace(4, 10.0, ())
    with pytest.raises(PlannerError, match="costs -1"):
        FaultCapacity(trace, (PricedArchitecture("a", Switch(), -1.0),), 2, 1, 0.9)
    with pytest.raises(PlannerError, match=r"run 1.2 of the time"):
        FaultCapacity(trace, (PricedArchitecture("a", Switch(), 1.0),), 2, 1, 1.2)
    with pytest.raises(PlannerError, match="0 groups"):
        FaultCapacity(trace, (PricedArchitecture("a", Switch(), 1.0),), 2, 0, 0.9)
