"""Groups of devices on nodes and racks: inside NVLink domains, with copies apart, and as few nodes broken as can be.

Sets        g in G kinds of groups (as many devices, the same models), n in N nodes of domains d, m in M models
            u in U units that may be lost at once (nodes, or racks of these), s in S sizes of groups
Parameters  c_g groups of a kind, of s_g devices each;  a_nd free devices of a domain of a node, of D in service
            R_ns = s sum_d floor(a_nd / s), what groups of at least s devices can take of a node; for s > D, whole
            domains alone count
            r_m units on which m is to live;  w_n = 1 for a node of which something is taken already, else |N| + 1
Variables   x_gn groups of a kind on a node;  y_n in {0,1} whether it is used;  z_mu in {0,1} whether m lives on a unit
Objective   min sum_n w_n y_n                          nodes that nobody uses stay whole, then few are used
(C1) sum_n x_gn = c_g
(C2) sum of s_g x_gn over s_g >= s  <=  R_ns y_n       for s in S
(C3) z_mu <= sum of x_gn over g with m and n of u
(C4) sum_u z_mu >= r_m
Sizes divide one another, so that (C2) is all that packing needs (`packing`); where they do not, nodes are one domain
each and (C2) is that of the smallest size with its free devices.
"""

import itertools
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.errors import PlannerError
from planner.solvers.backends.model import Expr, LinearModel, total
from planner.solvers.backends.solve import solve
from planner.solvers.result import SolveResult

WHERE = "floor"

Devices = tuple[int, ...]
Kind = tuple[int, tuple[int, ...]]
"""Devices of a group, and its models."""


@dataclass(frozen=True, slots=True)
class FloorNode:
    """A node: free devices of each of its domains, whether nothing of it is taken, and the unit it is lost with."""

    domains: tuple[Devices, ...]
    whole: bool
    unit: int

    @property
    def free(self) -> int:
        """Devices of all domains that are free."""
        return sum(len(domain) for domain in self.domains)


@dataclass(frozen=True, slots=True)
class Floor:
    """Nodes whose domains have `domain_devices` devices where nothing is taken."""

    nodes: tuple[FloorNode, ...]
    domain_devices: int

    def room(self, node: FloorNode, size: int) -> int:
        """R_ns: devices of a node that groups of at least this size can take."""
        if size <= self.domain_devices:
            return size * sum(len(domain) // size for domain in node.domains)
        whole = sum(len(domain) == self.domain_devices for domain in node.domains)
        return whole * self.domain_devices // size * size

    def room_of_all(self, size: int) -> int:
        """Of all nodes."""
        return sum(self.room(node, size) for node in self.nodes)


def lay(
    floor: Floor, groups: Sequence[Kind], units: Mapping[int, int], *, time_limit_s: float | None = None
) -> SolveResult[tuple[Devices, ...]]:
    """The devices of every group; `units` has the models that are to live on so many units.

    Raises PlannerError for sizes that do not divide one another where nodes have several domains.
    """
    started_s = time.perf_counter()
    kinds = Counter(groups)
    sizes = _sizes(floor, groups)
    model = LinearModel()
    x = [{kind: model.integer_variable(f"x[{g},{n}]", 0.0, count) for g, (kind, count) in enumerate(kinds.items())}
         for n in range(len(floor.nodes))]  # fmt: skip
    y = [model.binary(f"y[{n}]") for n in range(len(floor.nodes))]
    for g, (kind, count) in enumerate(kinds.items()):
        model.add(total(row[kind] for row in x) == float(count), f"C1[{g}]")
    for n, node in enumerate(floor.nodes):
        for size in sizes:
            taken = total(float(kind[0]) * each for kind, each in x[n].items() if kind[0] >= size)
            room = node.free if len(sizes) == 1 and not _chain(groups) else floor.room(node, size)
            model.add(taken <= float(room) * y[n], f"C2[{n},{size}]")
    for m, least in units.items():
        model.add(total(_lives(model, floor, x, m)) >= float(least), f"C4[{m}]")
    broken = float(len(floor.nodes) + 1)
    model.objective = total((broken if node.whole else 1.0) * y[n] for n, node in enumerate(floor.nodes)).terms
    result = solve(model, backend="cpsat", time_limit_s=time_limit_s)
    places = None
    if result.solution is not None:
        value = result.solution.value
        counts = [Counter({kind: round(value(each)) for kind, each in row.items()}) for row in x]
        places = _placed(floor, groups, counts)
    took_s = time.perf_counter() - started_s
    return SolveResult(result.status, result.stop_reason, places, result.objective, result.bound, took_s, result.solver)


def spread(floor: Floor, groups: Sequence[Kind], places: Sequence[Devices]) -> dict[int, int]:
    """On how many units every model lives."""
    unit = {device: node.unit for node in floor.nodes for domain in node.domains for device in domain}
    lives: dict[int, set[int]] = {}
    for (_, models), devices in zip(groups, places, strict=True):
        for m in models:
            lives.setdefault(m, set()).add(unit[devices[0]])
    return {m: len(units) for m, units in lives.items()}


def _chain(groups: Sequence[Kind]) -> bool:
    sizes = sorted({size for size, _ in groups})
    return all(large % small == 0 for small, large in itertools.pairwise(sizes))


def _sizes(floor: Floor, groups: Sequence[Kind]) -> list[int]:
    sizes = sorted({size for size, _ in groups})
    if _chain(groups):
        return sizes
    if any(len(node.domains) > 1 for node in floor.nodes):
        what = f"groups of {sizes} devices, of which not each divides the next, on nodes of several domains"
        raise PlannerError(what, where=WHERE, hint="give sizes that divide one another")
    return sizes[:1]


def _lives(model: LinearModel, floor: Floor, x: Sequence[Mapping[Kind, Expr]], m: int) -> list[Expr]:
    """z_mu of every unit."""
    lives = []
    for unit in sorted({node.unit for node in floor.nodes}):
        here = [row for row, node in zip(x, floor.nodes, strict=True) if node.unit == unit]
        z = model.binary(f"z[{m},{unit}]")
        model.add(z <= total(each for row in here for kind, each in row.items() if m in kind[1]), f"C3[{m},{unit}]")
        lives.append(z)
    return lives


def _placed(floor: Floor, groups: Sequence[Kind], counts: list[Counter[Kind]]) -> tuple[Devices, ...]:
    """Devices of every group: on its node the largest first, each in the domain with least room over."""
    homes: dict[Kind, list[int]] = {}
    for n, count in enumerate(counts):
        for kind, number in count.items():
            homes.setdefault(kind, []).extend([n] * number)
    nodes = [homes[kind].pop(0) for kind in groups]
    free = [[list(domain) for domain in node.domains] for node in floor.nodes]
    places: list[Devices] = [()] * len(groups)
    for index in sorted(range(len(groups)), key=lambda index: (-groups[index][0], index)):
        places[index] = _taken(free[nodes[index]], groups[index][0], floor.domain_devices)
    return tuple(places)


def _taken(domains: list[list[int]], size: int, whole: int) -> Devices:
    """So many devices of one domain, or of whole ones, taken from what is free."""
    chosen: list[list[int]]
    if size > whole:
        chosen = [domain for domain in domains if len(domain) == whole][: size // whole]
    else:
        chosen = [min((domain for domain in domains if len(domain) >= size), key=len)]
    devices = [device for domain in chosen for device in domain][:size]
    for domain in chosen:
        domain[:] = [device for device in domain if device not in devices]
    return tuple(sorted(devices))
