"""Topology cases against their targets: ours, its bound, and beside it the best trivial answers.

    python benchmarks/topology.py [CASE.json ...] [--quick]

Trivial answers are one-line rules, computed here for the case at hand: for faults, groups x nodes and the most faults
at once (cheapest architecture that keeps the groups so); for rings, groups cut off every line from some ToR on, paired
in order of lines, by first ToR, and matched best; for racks, rank orders over every order of racks (or a few, where
there are many); for circuits, every phase at its own best, switched each time, and links dealt to the pair with most
bytes a link. `--quick` leaves out the pools with nodes out of service, which `benchmarks/topology_nodes.py` solves.

The waste ratios of `hbd_mc_2880gpu.json` are held against the case.
"""

import argparse
import itertools
import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from case_kinds import solve_case
from case_kinds.fault_capacity import problem_of as faults_of
from case_kinds.phase_circuits import problem_of as circuits_of
from case_kinds.rack_groups import problem_of as racks_of
from case_kinds.ring_groups import problem_of as rings_of
from inputs import SHARED, exit_code, required

from planner.solvers.topology.circuits import Circuits, circuits
from planner.solvers.topology.exchanges import Exchanges, Group, crossings, matched
from planner.solvers.topology.fault_capacity import availability
from planner.solvers.topology.racks_problem import Racks

WASTE = SHARED / "placement" / "hbd_mc_2880gpu.json"
WASTE_ERROR = 1e-6
MOST_ORDERS = 720


def trivial_faults(case: dict[str, Any]) -> dict[str, float]:
    """Cost by rule: as many nodes as the groups have and as ever were out at once, or are on average."""
    problem = faults_of(case)
    down = problem.trace.states()[1].sum(axis=1)
    needed = problem.groups * problem.nodes_per_group
    rules = {
        "most faults at once": needed + int(down.max(initial=0)),
        "mean faults": math.ceil(needed / (1.0 - problem.trace.mean_down())),
    }
    costs = {}
    for rule, wanted in rules.items():
        for priced in problem.architectures:
            nodes = next((n for n in priced.architecture.sizes(problem.trace.nodes) if n >= wanted), None)
            if nodes is None:
                continue
            figures = {"nodes_per_group": problem.nodes_per_group, "groups": problem.groups}
            if availability(problem.trace, priced.architecture, nodes, **figures) >= problem.availability:
                costs[f"{rule}, {priced.name}"] = nodes * priced.cost_per_node
    return costs


def trivial_rings(case: dict[str, Any]) -> dict[str, float]:
    """Crossings of groups cut off every line from some ToR on, paired as they come or matched best."""
    problem = rings_of(case)

    def paired(order: list[Group]) -> float:
        return float(sum(crossings(a, b) for a, b in zip(order[::2], order[1::2], strict=True)))

    costs: dict[str, float] = {}
    for start in range(problem.tors):
        groups = walked(problem, start)[: 2 * problem.pairs]
        if len(groups) == 2 * problem.pairs:
            rules = {
                "in order of lines": paired(groups),
                "by first ToR": paired(sorted(groups, key=lambda g: g.tors)),
                "best matching": float(matched(groups).crossings),
            }
            costs |= {rule: min(cost, costs.get(rule, math.inf)) for rule, cost in rules.items()}
    return costs


def walked(problem: Exchanges, start: int) -> list[Group]:
    """Groups of neighbours that are at most K apart, walking every line once from a ToR on."""
    groups = []
    for line in range(problem.lines):
        path: list[int] = []
        for step in range(problem.tors):
            tor = (start + step) % problem.tors
            if (tor, line) in problem.faulty:
                continue
            near = path and (tor - path[-1]) % problem.tors <= problem.hops
            path = [*path, tor] if near else [tor]
            if len(path) == problem.nodes_per_group:
                groups.append(Group(line, tuple(path)))
                path = []
    return groups


def orders_of(racks: int, free: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """All orders of few racks; as listed, largest first and smallest first of many."""
    if math.factorial(min(racks, 20)) <= MOST_ORDERS:
        yield from itertools.permutations(range(racks))
        return
    yield tuple(range(racks))
    yield tuple(sorted(range(racks), key=lambda b: -free[b]))
    yield tuple(sorted(range(racks), key=lambda b: free[b]))


def trivial_racks(case: dict[str, Any]) -> dict[str, float]:
    """Seconds of ranks in order, nodes rack by rank as they come: no replica is numbered anew."""
    problem = racks_of(case)
    cells = np.arange(problem.cells)
    rules = {
        "data-parallel neighbours first": (cells // problem.replicas, cells % problem.replicas),
        "replica by replica": (cells % problem.stages, cells // problem.stages),
    }
    costs: dict[str, float] = {}
    for rule, (stage, replica) in rules.items():
        for order in orders_of(len(problem.free_B), problem.free_B):
            rack = np.repeat(order, [problem.free_B[b] for b in order])[: problem.cells]
            placed = np.empty((problem.stages, problem.replicas), np.int64)
            placed[stage, replica] = rack
            costs[rule] = min(costs.get(rule, math.inf), busiest_s(problem, placed))
    return costs


def busiest_s(problem: Racks, placed_SD: "np.ndarray[Any, Any]") -> float:
    """Seconds of the busiest uplink of cells on racks."""
    inside_BSD = placed_SD[None] == np.arange(len(problem.free_B))[:, None, None]
    count_BS = inside_BSD.sum(axis=2)
    sent_B = ((count_BS > 0) & (count_BS < problem.replicas)) @ np.array(problem.gradient_bytes_S)
    leaving_BS = (inside_BSD[:, 1:] != inside_BSD[:, :-1]).sum(axis=2)
    sent_B = sent_B + leaving_BS @ np.array(problem.activation_bytes_S)
    return float((sent_B / np.array(problem.uplink_bytes_per_s_B)).max())


def trivial_circuits(case: dict[str, Any]) -> dict[str, float]:
    """Seconds of a round under rules for the links."""
    problem = circuits_of(case)
    alone = [
        circuits(Circuits(problem.pods, problem.ports, problem.link_bytes_per_s, 0.0, (phase,)))
        for phase in problem.phases
    ]
    costs = {}
    if all(result.objective is not None for result in alone):
        switched = len(alone) * problem.switching_s * (len(alone) > 1)
        costs["every phase at its own best"] = math.fsum(result.objective or 0.0 for result in alone) + switched
    links = dict.fromkeys(problem.pairs, 1)
    sizes = {pair: sum(phase.get(pair, 0.0) for phase in problem.phases) for pair in problem.pairs}
    room = [problem.ports - sum(pod in pair for pair in links) for pod in range(problem.pods)]
    while fits := [pair for pair in links if min(room[pair[0]], room[pair[1]]) > 0]:
        most = max(fits, key=lambda pair: sizes[pair] / links[pair])
        links[most] += 1
        for pod in most:
            room[pod] -= 1
    if min(room) >= 0:
        costs["one map, links to the pair with most bytes a link"] = problem.seconds([links] * len(problem.phases))
    return costs


TRIVIAL = {
    "fault_capacity": trivial_faults,
    "ring_groups": trivial_rings,
    "rack_groups": trivial_racks,
    "phase_circuits": trivial_circuits,
}


def row(path: Path) -> bool:
    """Prints a case; whether ours is better than every trivial answer."""
    case = json.loads(path.read_text())
    before = time.process_time()
    answer = solve_case(case, path.parent)
    cpu_s = time.process_time() - before
    trivial = TRIVIAL[case["kind"]](case)
    best = min(trivial, key=lambda rule: trivial[rule], default=None)
    gap = "none" if answer.bound is None else f"{answer.objective / max(answer.bound, 1e-12) - 1.0:.4%}"
    beside = "no trivial answer holds" if best is None else f"best trivial {trivial[best]:.6g} ({best})"
    print(f"{path.stem:26}{answer.objective:12.6g}  over the bound {gap:>9}  {cpu_s:6.2f} CPU-s  {beside}", flush=True)
    return best is None or answer.objective < trivial[best] or answer.objective == answer.bound


def wasted() -> bool:
    """Prints the largest error of the waste ratios; whether it is within the limit."""
    path = required(WASTE)
    answer = solve_case(json.loads(path.read_text()), path.parent)
    print(f"{WASTE.stem:26}{answer.summary}: {answer.objective:.2g}, {WASTE_ERROR:g} allowed")
    return answer.objective <= WASTE_ERROR


def main() -> int:
    """1 where a trivial answer is as good as ours and ours is not proven, or a ratio is off."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", type=Path)
    parser.add_argument("--quick", action="store_true", help="the cases alone")
    arguments = parser.parse_args()
    cases = arguments.cases or sorted(required(SHARED / "cases").glob("topo_*.json"))
    held = [row(path) for path in cases if not path.stem.endswith(".ref")]
    if not arguments.cases:
        held.append(wasted())
    if not arguments.quick and not arguments.cases:
        nodes = subprocess.run([sys.executable, str(Path(__file__).parent / "topology_nodes.py")], check=False)
        held.append(nodes.returncode == 0)
    return exit_code(not all(held))


if __name__ == "__main__":
    sys.exit(main())
