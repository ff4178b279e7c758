"""Layers over unequal nodes by an integer program over the spans of nodes: exact where nodes and layers are few.

Sets        A classes of nodes that change places without a difference (n_A of them, each a class where links are told
            apart);  b boundaries 0 to L of layers;  spans [s, e) of layers
Parameters  T_A(k), C_AB, source, sink [tokens/s], q_A, h, P as in `aligned`
Variables   z_Ase nodes of a class that hold a span, whole;  g_Ase [tokens/s] that they serve
            f_ABb [tokens/s] from nodes of A that end at b to nodes of B that start there, where links limit any
            y_seq 1 where nodes of path q hold the span;  d_b longest chain of spans up to b, where paths limit any
Objective   max sum_Ae g_A0e
(S1) sum_se z_Ase <= n_A;  g_Ase <= T_A(e - s) z_Ase;  g_A0e <= source_A z_A0e;  g_AsL <= sink_A z_AsL
(S2) sum_As g_Asb = sum_Ae g_Abe at every b between, where no link limits; else
     sum_s g_Asb = sum_B f_ABb and sum_e g_Bbe = sum_A f_ABb
(S3) f_ABb <= C_AB m_B sum_s z_Asb and f_ABb <= C_AB m_A sum_e z_Bbe, m nodes of a class that can be at the other end
(S4) z_Ase <= n_A y_seq;  d_e >= d_s + h + (e - s) q where y_seq = 1;  d_0 = 0;  d_b <= P
Exactness   C_AB times both counts is what links of a class carry, of which (S3) is the hull: exact for classes of one
            node, and where no link limits; else a bound.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats
from planner.solvers.backends.model import Expr, LinearModel, Solution, total
from planner.solvers.backends.solve import solve
from planner.solvers.placement.layers.problem import DUST, Held, LayerProblem, Node, all_work, rate_of, useful

Span = tuple[int, int, int]
"""A class, and the layers [start, end) that nodes of it hold."""
MOST_SPANS = 150  # whole variables of a program that is solved
MOST_NODES = 300  # of the tree of a solve
USED = 1e-7  # of all work: a smaller flow is none


@dataclass(frozen=True, slots=True)
class SpanAnswer:
    """What every node holds (None where none lets a request through), and tokens a second that no spans are above."""

    held: Held | None
    bound: float


def few_spans(problem: LayerProblem) -> bool:
    """Whether nodes and layers are few enough for the program."""
    classes = _classes(problem, _limits(problem))
    return sum(len(spans_of(problem.nodes[members[0]], problem.layers)) for members in classes) <= MOST_SPANS


def best_spans(problem: LayerProblem) -> SpanAnswer:
    """The spans with most tokens a second, and a bound where the solver stopped before."""
    limits = _limits(problem)
    return _Program(problem, _classes(problem, limits), limits).solved()


def spans_of(node: Node, layers: int) -> list[tuple[int, int]]:
    """Layers [start, end) that a node can hold and serve."""
    return [(start, start + k) for k in useful(node) if k <= layers for start in range(layers - k + 1)]


def _limits(problem: LayerProblem) -> Floats:
    """Tokens a second of links; infinite where a node at either end lets no more through. [N, N]"""
    most = np.array([max(node.tokens_per_s, default=0.0) for node in problem.nodes])
    limits = np.where(problem.link_tokens_per_s >= np.minimum.outer(most, most), math.inf, problem.link_tokens_per_s)
    np.fill_diagonal(limits, math.inf)
    return np.asarray(limits)


def _classes(problem: LayerProblem, limits: Floats) -> list[list[int]]:
    """Nodes that are alike, in themselves and in their links."""
    own = [
        (node.tokens_per_s, node.layer_path, problem.source_tokens_per_s[i], problem.sink_tokens_per_s[i])
        for i, node in enumerate(problem.nodes)
    ]
    classes: list[list[int]] = []
    for i in range(len(own)):
        alike = (members for members in classes if own[members[0]] == own[i] and _swapped(limits, members[0], i))
        members = next(alike, None)
        if members is None:
            classes.append([i])
        else:
            members.append(i)
    return classes


def _swapped(limits: Floats, i: int, j: int) -> bool:
    """Whether links stay as they are when two nodes change places."""
    order = np.arange(len(limits))
    order[[i, j]] = j, i
    return bool((limits == limits[np.ix_(order, order)]).all())


class _Program:
    """The program over some classes; tokens a second in parts of what all nodes together do (`unit`)."""

    def __init__(self, problem: LayerProblem, classes: Sequence[Sequence[int]], limits: Floats) -> None:
        self.problem, self.classes, self.limits = problem, classes, limits
        self.unit = all_work(problem, range(len(problem.nodes)))
        self.model = LinearModel()
        self.holders: dict[Span, Expr] = {}
        self.served: dict[Span, Expr] = {}
        self.begun: dict[tuple[int, int], list[Span]] = defaultdict(list)  # by class and boundary
        self.ended: dict[tuple[int, int], list[Span]] = defaultdict(list)
        for a, members in enumerate(classes):
            self._hold(a, members)
        self._join()
        if math.isfinite(problem.longest_path):
            self._keep_to_paths()
        starts = [self.served[span] for a in range(len(classes)) for span in self.begun[a, 0]]
        self.model.maximise(total(starts))

    def solved(self) -> SpanAnswer:
        """What every node holds, and the bound; no layers and a bound of 0 where no more than `USED` comes through."""
        result = solve(self.model, node_limit=MOST_NODES)
        bound = math.inf if result.bound is None else result.bound * self.unit
        if result.solution is None or (result.objective or 0.0) <= USED:
            return SpanAnswer(None, 0.0 if bound <= USED * self.unit else bound)
        return SpanAnswer(self._held(result.solution), bound)

    def _hold(self, a: int, members: Sequence[int]) -> None:
        """(S1)"""
        problem, node = self.problem, self.problem.nodes[members[0]]
        for start, end in spans_of(node, problem.layers):
            span = (a, start, end)
            most = rate_of(node, end - start)
            if start == 0:
                most = min(most, float(problem.source_tokens_per_s[members[0]]))
            if end == problem.layers:
                most = min(most, float(problem.sink_tokens_per_s[members[0]]))
            self.holders[span] = z = self.model.integer_variable(f"z{span}", 0.0, float(len(members)))
            self.served[span] = g = self.model.continuous(f"g{span}", 0.0, len(members) * most / self.unit)
            self.model.add(g <= most / self.unit * z, f"S1{span}")
            self.begun[a, start].append(span)
            self.ended[a, end].append(span)
        held = [z for (other, _, _), z in self.holders.items() if other == a]
        self.model.add(total(held) <= float(len(members)), f"S1({a})")

    def _join(self) -> None:
        """(S2) and (S3)"""
        numbers, free = range(len(self.classes)), bool(np.isinf(self.limits).all())
        for b in range(1, self.problem.layers):
            into = {a: total(self.served[span] for span in self.ended[a, b]) for a in numbers}
            out = {a: total(self.served[span] for span in self.begun[a, b]) for a in numbers}
            if free:
                self.model.add(total(into.values()) == total(out.values()), f"S2({b})")
                continue
            over = {(a, c): self._link(a, c, b) for a in numbers for c in numbers}
            for a in numbers:
                self.model.add(into[a] == total(over[a, c] for c in numbers), f"S2({a},{b}) in")
                self.model.add(out[a] == total(over[c, a] for c in numbers), f"S2({a},{b}) out")

    def _link(self, a: int, c: int, b: int) -> Expr | float:
        """Tokens a second from nodes of a class that end at a boundary to those of another that start there."""
        i, j = self.classes[a][0], self.classes[c][-1]
        if i == j or not self.ended[a, b] or not self.begun[c, b] or not self.limits[i, j]:
            return 0.0
        flow = self.model.continuous(f"f({a},{c},{b})", 0.0, 1.0)
        if math.isfinite(self.limits[i, j]):
            limit, other = float(self.limits[i, j]) / self.unit, float(a == c)
            ends = total(self.holders[span] for span in self.ended[a, b])
            starts = total(self.holders[span] for span in self.begun[c, b])
            self.model.add(flow <= limit * (len(self.classes[c]) - other) * ends, f"S3({a},{c},{b}) out")
            self.model.add(flow <= limit * (len(self.classes[a]) - other) * starts, f"S3({a},{c},{b}) in")
        return flow

    def _keep_to_paths(self) -> None:
        """(S4)"""
        problem = self.problem
        most = problem.longest_path * (1.0 + DUST)
        depth = [self.model.continuous(f"d({b})", 0.0, most if b else 0.0) for b in range(problem.layers + 1)]
        used: dict[tuple[int, int, float], Expr] = {}
        for (a, start, end), z in self.holders.items():
            members = self.classes[a]
            layer_path = problem.nodes[members[0]].layer_path
            path = problem.hop_path + (end - start) * layer_path
            if (start, end, layer_path) not in used:
                used[start, end, layer_path] = y = self.model.binary(f"y({start},{end},{layer_path})")
                reached = depth[end] >= depth[start] + path - (most + path) * (1.0 - y)
                self.model.add(reached, f"S4({start},{end},{layer_path})")
            self.model.add(z <= float(len(members)) * used[start, end, layer_path], f"S4{(a, start, end)}")

    def _held(self, solution: Solution) -> Held:
        held: list[tuple[int, int] | None] = [None] * len(self.problem.nodes)
        free = [list(members) for members in self.classes]
        for (a, start, end), z in self.holders.items():
            if solution.value(self.served[a, start, end]) > USED:
                for _ in range(round(solution.value(z))):
                    held[free[a].pop(0)] = (start, end)
        return tuple(held)
