"""Which groups on k-hop rings exchange with which, so that as few exchanges as can be cross racks (InfiniteHBD).

Source      InfiniteHBD, SIGCOMM 2025, arXiv:2502.03885: nodes (t, l) of ToR switch t on line l; every line is a k-hop
            ring over the ToRs, groups (of tensor parallelism) lie along lines, and two groups (data-parallel partners)
            exchange rank by rank. An exchange between different ToRs crosses.
Sets        g in groups: m healthy nodes of one line in ring order, gaps 1 .. K, once around at most;  nodes n
            q in pairs of groups of different lines that meet at one rank or more;  c_q ranks at which they do not
Variables   x_q in {0, 1} the two groups of q exchange;  y_g in {0, 1} group g does with any other that is left over
Objective   min sum_q c_q x_q + sum_g (m / 2) y_g
(C1) sum of x_q and y_g over those that stand on n <= 1     for every healthy node
(C2) 2 sum_q x_q + sum_g y_g = 2 ceil(G / 2)                groups enough, and no more
Why halves  two groups that never meet cross at all m ranks, whichever they are, so they need no column of their own:
            that keeps the columns few. Groups of one line never meet.
Method      the most groups that there can be, in whole segments of every line, show whether any answer exists. Groups
            cut off the segments one by one, matched best, are the first answer; the program over pairs that cross once
            at most, and then the one over all of them, improve and prove it.
"""

import itertools
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.errors import PlannerError
from planner.solvers.backends.model import Expr, LinearModel, total
from planner.solvers.backends.solve import solve
from planner.solvers.result import SolveResult, Status
from planner.solvers.topology.architectures import KHopRing

WHERE, SOLVER = "exchanges", "set packing of pairs"
MOST_GROUPS = 20_000  # that are listed
FEW_COLUMNS = 4_000  # up to which CP-SAT proves faster than HiGHS
TIME_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True, order=True)
class Group:
    """Nodes of one line, by their ToRs in ring order: rank by rank."""

    line: int
    tors: tuple[int, ...]

    @property
    def nodes(self) -> tuple[tuple[int, int], ...]:
        return tuple((tor, self.line) for tor in self.tors)


@dataclass(frozen=True, slots=True)
class Exchanges:
    """The problem; raises PlannerError for figures that cannot be."""

    tors: int
    lines: int
    hops: int
    nodes_per_group: int
    groups: int
    faulty: frozenset[tuple[int, int]] = frozenset()  # (ToR, line)

    def __post_init__(self) -> None:
        if min(self.tors, self.lines, self.hops, self.nodes_per_group) < 1 or self.groups < 0:
            what = (
                f"{self.groups} groups of {self.nodes_per_group} nodes on {self.lines} lines of {self.tors} ToRs, "
                f"{self.hops} hops"
            )
            raise PlannerError(what, where=WHERE, hint="give at least one of each")
        for tor, line in sorted(self.faulty):
            if not (0 <= tor < self.tors and 0 <= line < self.lines):
                hint = f"ToRs are 0 to {self.tors - 1}, lines 0 to {self.lines - 1}"
                raise PlannerError(f"node {tor} of line {line} is out", where=WHERE, hint=hint)
        if self.nodes_per_group > self.tors:
            what = f"groups of {self.nodes_per_group} nodes along lines of {self.tors}"
            raise PlannerError(what, where=WHERE, hint=f"ask for at most {self.tors} nodes")

    @property
    def pairs(self) -> int:
        """Pairs of groups that exchange: enough for all groups, and no more."""
        return -(-self.groups // 2)

    def whole_segments(self) -> list[Group]:
        """As many groups as there can be, cut off the segments of every line."""
        ring = KHopRing(self.hops)
        groups = []
        for line in range(self.lines):
            healthy = np.array([(tor, line) not in self.faulty for tor in range(self.tors)])
            groups += [Group(line, tuple(row)) for row in ring.groups(healthy, self.nodes_per_group).tolist()]
        return groups

    def every_group(self) -> Iterator[Group]:
        """All groups of every line: paths of healthy nodes in ring order, at most once around."""
        for line, first in itertools.product(range(self.lines), range(self.tors)):
            if (first, line) not in self.faulty:
                yield from (Group(line, tors) for tors in self._paths(line, (first,), 0))

    def _paths(self, line: int, path: tuple[int, ...], span: int) -> Iterator[tuple[int, ...]]:
        if len(path) == self.nodes_per_group:
            yield path
            return
        for gap in range(1, min(self.hops, self.tors - 1 - span) + 1):
            tor = (path[-1] + gap) % self.tors
            if (tor, line) not in self.faulty:
                yield from self._paths(line, (*path, tor), span + gap)


@dataclass(frozen=True, slots=True)
class Exchange:
    """Pairs of groups that exchange rank by rank."""

    pairs: tuple[tuple[Group, Group], ...]

    @property
    def crossings(self) -> int:
        return sum(crossings(a, b) for a, b in self.pairs)


def crossings(a: Group, b: Group) -> int:
    """Ranks at which two groups stand in different ToRs."""
    return sum(x != y for x, y in zip(a.tors, b.tors, strict=True))


def fewest_crossings(problem: Exchanges, *, time_limit_s: float = TIME_LIMIT_S) -> SolveResult[Exchange]:
    """The pairs that cross least; objective and bound are counts of exchanges.

    INFEASIBLE where there are too few groups. FEASIBLE, with the bound that is proven, where time ran out.
    """
    started_s = time.perf_counter()
    whole = problem.whole_segments()
    if len(whole) < 2 * problem.pairs:
        return SolveResult(Status.INFEASIBLE, "finished", None, None, None, time.perf_counter() - started_s, SOLVER)
    groups = _listed(problem)
    best = matched(whole[: 2 * problem.pairs])
    bound, reason, solver = 0, "finished", SOLVER
    for most in (1, problem.nodes_per_group - 1):
        if best.crossings == bound:
            break
        result = _packed(problem, groups, most, time_limit_s)
        if result.solution is not None and result.solution.crossings < best.crossings:
            best = result.solution
        reason, solver = result.stop_reason, f"{SOLVER}, {result.solver}"
        if most == problem.nodes_per_group - 1 and result.bound is not None:
            bound = max(bound, math.ceil(result.bound - 1e-6))
    optimal = best.crossings <= bound
    return SolveResult(
        Status.OPTIMAL if optimal else Status.FEASIBLE,
        "finished" if optimal else reason,
        best,
        float(best.crossings),
        float(min(bound, best.crossings)),
        time.perf_counter() - started_s,
        solver,
    )


def _listed(problem: Exchanges) -> list[Group]:
    groups = list(itertools.islice(problem.every_group(), MOST_GROUPS + 1))
    if len(groups) > MOST_GROUPS:
        what = f"more than {MOST_GROUPS} groups of {problem.nodes_per_group} nodes with gaps of up to {problem.hops}"
        raise PlannerError(what, where=WHERE, hint="allow fewer hops, or take lines apart")
    return groups


def _packed(problem: Exchanges, groups: list[Group], most: int, time_limit_s: float) -> SolveResult[Exchange]:
    """The program over pairs that cross `most` times at most."""
    size = problem.nodes_per_group
    pairs = {pair: count for pair, count in _meeting(groups, size).items() if count <= most}
    model = LinearModel()
    y = [model.binary(f"y[{g}]") for g in range(len(groups))]
    x = {(g, h): model.binary(f"x[{g},{h}]") for g, h in pairs}
    on_node: dict[tuple[int, int], list[Expr]] = defaultdict(list)
    for g, column in enumerate(y):
        for node in groups[g].nodes:
            on_node[node].append(column)
    for (g, h), column in x.items():
        for node in (*groups[g].nodes, *groups[h].nodes):
            on_node[node].append(column)
    for (tor, line), columns in on_node.items():
        model.add(total(columns) <= 1.0, f"C1[{tor},{line}]")
    model.add(total([*(2.0 * column for column in x.values()), *y]) == 2.0 * problem.pairs, "C2")
    model.minimise(total([*(pairs[pair] * column for pair, column in x.items()), *(size / 2 * column for column in y)]))
    backend = "cpsat" if len(x) + len(y) <= FEW_COLUMNS else "mathopt-highs"
    result = solve(model, backend=backend, time_limit_s=time_limit_s)
    exchange = None
    if result.solution is not None:
        value = result.solution.value
        together = tuple((groups[g], groups[h]) for (g, h), column in x.items() if value(column) > 0.5)
        alone = [groups[g] for g, column in enumerate(y) if value(column) > 0.5]
        exchange = Exchange((*together, *matched(alone).pairs))
    return SolveResult(
        result.status, result.stop_reason, exchange, result.objective, result.bound, result.solve_s, result.solver
    )


def _meeting(groups: Iterable[Group], size: int) -> dict[tuple[int, int], int]:
    """Crossings of every two groups, by their places, of different lines that stand in one ToR at some rank."""
    standing: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for place, group in enumerate(groups):
        for rank, tor in enumerate(group.tors):
            standing[rank, tor].append((place, group.line))
    count: dict[tuple[int, int], int] = defaultdict(lambda: size)
    for there in standing.values():
        for (a, line_a), (b, line_b) in itertools.combinations(there, 2):
            if line_a != line_b:
                count[a, b] -= 1
    return count


def matched(groups: list[Group]) -> Exchange:
    """An even number of given groups, matched with the fewest crossings (Edmonds' blossoms)."""
    from networkx import Graph, min_weight_matching

    graph: Any = Graph()
    for (a, first), (b, second) in itertools.combinations(enumerate(groups), 2):
        graph.add_edge(a, b, weight=crossings(first, second))
    return Exchange(tuple(sorted((groups[min(a, b)], groups[max(a, b)]) for a, b in min_weight_matching(graph))))
