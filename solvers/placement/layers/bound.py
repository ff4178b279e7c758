"""How many tokens a second layers on unequal nodes let through at most: patterns of holders (`aligned`, bound)."""

import math
from collections.abc import Sequence

import numpy as np

from planner.arrays import Floats, Ints
from planner.solvers.backends.model import LinearModel, total
from planner.solvers.backends.solve import solve
from planner.solvers.placement.layers.problem import DUST, PRECISION, LayerProblem, all_work, parts_of, useful

CLOSE = 2e-7  # of a flow, by which none is more where so little more is too much
UNITS = 4000  # steps of a flow, up to which patterns are told apart


def flow_bound(problem: LayerProblem, above: float = 0.0) -> float:
    """No layers on these nodes let more tokens a second through; `above` is what some do."""
    if _shortest_path(problem) > problem.longest_path * (1.0 + DUST):
        return 0.0
    whole = _holders_bound(problem, range(len(problem.nodes)), above)
    ends = min(float(problem.source_tokens_per_s.sum()), float(problem.sink_tokens_per_s.sum()))
    parts = list(parts_of(problem))[1:]
    if not parts:
        return min(whole, ends)
    region = np.array([node.region for node in problem.nodes])
    crossing = float(problem.link_tokens_per_s[region[:, None] != region[None, :]].sum())
    return min(whole, ends, sum(_holders_bound(problem, nodes) for nodes in parts) + crossing)


def _shortest_path(problem: LayerProblem) -> float:
    """No request passes through all layers on a shorter one, were there any number of each node."""
    steps = {(k, problem.hop_path + k * node.layer_path) for node in problem.nodes for k in useful(node)}
    least = [0.0]
    for layers in range(1, problem.layers + 1):
        least.append(min((least[layers - k] + path for k, path in steps if k <= layers), default=math.inf))
    return least[-1]


def _holders_bound(problem: LayerProblem, nodes: Sequence[int], above: float = 0.0) -> float:
    """The least flow, to a precision, at which patterns of holders cover fewer than all layers."""
    if sum(max(useful(problem.nodes[i]), default=0) for i in nodes) < problem.layers:
        return 0.0
    holders = _Holders(problem, nodes)
    low, high = above, all_work(problem, nodes)
    flow = above * (1.0 + PRECISION / 4.0) if above else high / 2.0
    while high - low > PRECISION / 4.0 * high:
        if holders.covered(flow) < problem.layers * (1.0 - DUST):
            high = flow
        else:
            low = flow
        flow = (low + high) / 2.0
    closest = above * (1.0 + CLOSE)
    if low == above > 0.0 and closest < high and holders.covered(closest) < problem.layers * (1.0 - DUST):
        return closest
    return high


class _Holders:
    """Some nodes by type, with the patterns of holders that were looked at; a pattern is one of many flows."""

    def __init__(self, problem: LayerProblem, nodes: Sequence[int]) -> None:
        chosen = set(nodes)
        types = [[i for i in alike if i in chosen] for alike in problem.types]
        items = [
            (t, k, rate)
            for t, alike in enumerate(types)
            if alike
            for k, rate in enumerate(problem.nodes[alike[0]].tokens_per_s, start=1)
            if rate > 0.0 and k <= problem.layers
        ]
        self.layers = problem.layers
        self.count_T = [float(len(alike)) for alike in types]
        self.type_I = np.array([t for t, _, _ in items], dtype=np.int64)
        self.length_I = np.array([k for _, k, _ in items], dtype=np.float64)
        self.rate_I = np.array([rate for _, _, rate in items])
        self.patterns: list[Ints] = []

    def covered(self, flow: float) -> float:
        """Layers that patterns cover at most: the dual, min sum_t n_t u_t with sum over P of u_t / k >= 1.

        It ends early with fewer than all layers where prices that keep every row show as much, and with all of them
        where the rows so far do.
        """
        from planner.solvers.compiled import layer_stages

        if not len(self.type_I):
            return 0.0
        units_I = np.ceil(np.minimum(self.rate_I / flow, 1.0) * UNITS - DUST).astype(np.int64)
        rows = [self._row(pattern) for pattern in self.patterns if units_I[pattern].sum() >= UNITS]
        while True:
            u = self._prices(rows)
            if float(np.dot(self.count_T, u)) >= self.layers:
                return float(self.layers)
            price, pattern = layer_stages.cheapest_cover(units_I, u[self.type_I] / self.length_I, UNITS)
            if price > DUST:
                covered = float(np.dot(self.count_T, u)) / float(price)
                if price >= 1.0 - 1e-7 or covered < self.layers * (1.0 - DUST):
                    return covered
            self.patterns.append(pattern)
            rows.append(self._row(pattern))

    def _row(self, pattern: Ints) -> Floats:
        """Layers of a holder's that each type has in the pattern [T]."""
        shares = np.bincount(self.type_I[pattern], weights=1.0 / self.length_I[pattern], minlength=len(self.count_T))
        return shares.astype(np.float64)

    def _prices(self, rows: Sequence[Floats]) -> Floats:
        """One of each type, so that no row costs less than 1 and all nodes cost least. [T]"""
        model = LinearModel()
        u = [model.continuous(f"u[{t}]", 0.0) for t in range(len(self.count_T))]
        for number, row in enumerate(rows):
            model.add(total(float(a) * each for a, each in zip(row, u, strict=True)) >= 1.0, f"P[{number}]")
        model.objective = total(count * each for count, each in zip(self.count_T, u, strict=True)).terms
        result = solve(model)
        assert result.solution is not None
        return np.array([result.solution.value(each) for each in u])
