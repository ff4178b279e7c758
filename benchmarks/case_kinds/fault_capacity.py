"""The cheapest cluster that keeps its groups through recorded faults (InfiniteHBD): cost of nodes and links."""

from pathlib import Path
from typing import Any

from case_kinds import CaseAnswer
from planner.solvers.topology.architectures import Architecture, Cubes, FixedRings, KHopRing, Switch
from planner.solvers.topology.fault_capacity import FaultCapacity, FaultTrace, PricedArchitecture, cheapest_cluster


def architecture_of(entry: dict[str, Any]) -> Architecture:
    """Raises ValueError for a kind that is not known."""
    match entry["kind"]:
        case "switch":
            return Switch(entry.get("unit") or None)
        case "k-hop":
            return KHopRing(entry["hops"])
        case "fixed-ring":
            return FixedRings()
        case "cubes" | "torus":
            return Cubes(entry["unit"])
    raise ValueError(f"architecture `{entry['name']}` is of the unknown kind {entry['kind']!r}")


def problem_of(case: dict[str, Any]) -> FaultCapacity:
    return FaultCapacity(
        trace=FaultTrace(case["nodes"], case["horizon_days"], tuple((n, s, e) for n, s, e in case["faults"])),
        architectures=tuple(
            PricedArchitecture(entry["name"], architecture_of(entry), case["node_cost"] + entry["link_cost_per_node"])
            for entry in case["architectures"]
        ),
        nodes_per_group=case["tp"] // case["gpus_per_node"],
        groups=case["groups"],
        availability=case["availability"],
    )


def solve(case: dict[str, Any], directory: Path) -> CaseAnswer:
    problem = problem_of(case)
    result = cheapest_cluster(problem)
    if result.solution is None or result.objective is None:
        raise ValueError(f"no cluster keeps {case['groups']} groups {case['availability']:.2%} of the time")
    cluster = result.solution
    name = problem.architectures[cluster.architecture].name
    answer = {"architecture": name, "nodes": cluster.nodes}
    return CaseAnswer(answer, result.objective, result.bound, f"{cluster.nodes} nodes, {name}, {result.status}")
