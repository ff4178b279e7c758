"""How many tokens a second layers on unequal nodes let through at most: patterns of holders of a layer (`layers`)."""

from collections.abc import Sequence

import numpy as np

from planner.arrays import Floats
from planner.solvers.backends.model import LinearModel, total
from planner.solvers.backends.solve import solve
from planner.solvers.placement.layer_problem import DUST, PRECISION, LayerProblem, all_work, parts_of, useful

UNITS = 4000  # steps of a flow, up to which patterns are told apart


def flow_bound(problem: LayerProblem, above: float = 0.0) -> float:
    """No layers on these nodes let more tokens a second through; `above` is what some do."""
    whole = _holders_bound(problem, range(len(problem.nodes)), above)
    ends = min(float(problem.source_tokens_per_s.sum()), float(problem.sink_tokens_per_s.sum()))
    parts = list(parts_of(problem))[1:]
    if not parts:
        return min(whole, ends)
    region = np.array([node.region for node in problem.nodes])
    crossing = float(problem.link_tokens_per_s[region[:, None] != region[None, :]].sum())
    return min(whole, ends, sum(_holders_bound(problem, nodes) for nodes in parts) + crossing)


def _holders_bound(problem: LayerProblem, nodes: Sequence[int], above: float = 0.0) -> float:
    """The least flow, to a precision, at which patterns of holders cover fewer than all layers."""
    if sum(max(useful(problem.nodes[i]), default=0) for i in nodes) < problem.layers:
        return 0.0
    low, high = above, all_work(problem, nodes)
    flow = above * (1.0 + PRECISION / 4.0) if above else high / 2.0
    while high - low > PRECISION / 4.0 * high:
        if _covered(problem, nodes, flow) < problem.layers * (1.0 - DUST):
            high = flow
        else:
            low = flow
        flow = (low + high) / 2.0
    return high


def _covered(problem: LayerProblem, nodes: Sequence[int], flow: float) -> float:
    """Layers that patterns of holders cover at most: the dual, min sum_t n_t u_t with sum over P of u_t / k >= 1."""
    from planner.solvers.compiled import layer_stages

    chosen = set(nodes)
    types = [tuple(i for i in alike if i in chosen) for alike in problem.types]
    items = [
        (t, k, rate)
        for t, alike in enumerate(types)
        if alike
        for k, rate in enumerate(problem.nodes[alike[0]].tokens_per_s, start=1)
        if rate > 0.0 and k <= problem.layers
    ]
    if not items:
        return 0.0
    type_I, length_I = np.array([t for t, _, _ in items]), np.array([k for _, k, _ in items], dtype=np.float64)
    units_I = np.ceil(np.array([min(rate / flow, 1.0) for _, _, rate in items]) * UNITS - DUST).astype(np.int64)
    rows: list[Floats] = []
    u = np.zeros(len(types))
    while True:
        price, cover = layer_stages.cheapest_cover(units_I, u[type_I] / length_I, UNITS)
        if price >= 1.0 - 1e-7:
            return float(sum(len(alike) * each for alike, each in zip(types, u, strict=True)) / max(price, DUST))
        shares = np.bincount(type_I[cover], weights=1.0 / length_I[cover], minlength=len(types))
        rows.append(shares.astype(np.float64))
        model = LinearModel()
        prices = [model.continuous(f"u[{t}]", 0.0) for t in range(len(types))]
        for number, row in enumerate(rows):
            model.add(total(float(a) * each for a, each in zip(row, prices, strict=True)) >= 1.0, f"P[{number}]")
        model.objective = total(float(len(alike)) * each for alike, each in zip(types, prices, strict=True)).terms
        result = solve(model)
        assert result.solution is not None
        u = np.array([result.solution.value(each) for each in prices])
        if sum(len(alike) * each for alike, each in zip(types, u, strict=True)) >= problem.layers:
            return float(problem.layers)
