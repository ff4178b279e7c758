"""Healthy nodes that stand in no group, by architecture, size of group and share of faults (InfiniteHBD).

The answer has `results` in the form of the case: [mean, p99] by architecture, TP and share of nodes down, and null
where no unit has room for a group. Draws are those of the case's seed rule.
"""

import random
from pathlib import Path
from typing import Any

import numpy as np

from case_kinds import CaseAnswer
from planner.solvers.topology.architectures import Architecture, Cubes, FixedRings, Health, KHopRing, Switch, waste

TAIL = 0.99


def architecture_of(name: str, gpus_per_node: int) -> Architecture:
    """The architecture behind a name of the case: nvl72, khop2, tpuv4-64; raises ValueError for others."""
    if name == "big-switch":
        return Switch()
    if name == "sip-ring":
        return FixedRings()
    for prefix, build, unit in (
        ("khop", KHopRing, 1),
        ("nvl", Switch, gpus_per_node),
        ("tpuv4-", Cubes, gpus_per_node),
    ):
        size = name.removeprefix(prefix)
        if size != name and size.isdigit():
            return build(int(size) // unit)
    raise ValueError(f"architecture {name!r} is not known")


def healthy_by_trial(case: dict[str, Any], share: float) -> Health:
    """Nodes in service, [trials, nodes], drawn by the seed rule of the case."""
    nodes = case["nodes"]
    draws = random.Random(int(share * 1e4))
    healthy = np.ones((case["trials"], nodes), dtype=np.bool_)
    for row in healthy:
        row[draws.sample(range(nodes), round(share * nodes))] = False
    return healthy


def ratios(architecture: Architecture, healthy: Health, m: int) -> list[float] | None:
    """Mean and p99 of what is wasted; None where a group has more nodes than are joined."""
    if m > architecture.largest_group(healthy.shape[1]):
        return None
    shares = np.sort(waste(architecture, healthy, m))
    return [float(shares.mean()), float(shares[int(TAIL * len(shares))])]


def solve(case: dict[str, Any], directory: Path) -> CaseAnswer:
    drawn: dict[str, Health] = {}
    results: dict[str, list[float] | None] = {}
    for key in case["results"]:
        name, size, share = key.split("|")
        if share not in drawn:
            drawn[share] = healthy_by_trial(case, float(share.removeprefix("p")))
        m = int(size.removeprefix("tp")) // case["gpus_per_node"]
        results[key] = ratios(architecture_of(name, case["gpus_per_node"]), drawn[share], m)
    largest = max(
        (
            abs(a - b)
            for key, ours in results.items()
            for a, b in zip(ours or (), case["results"][key] or (), strict=True)
        ),
        default=0.0,
    )
    return CaseAnswer({"results": results}, largest, 0.0, f"{len(results)} ratios; the objective is the largest error")
