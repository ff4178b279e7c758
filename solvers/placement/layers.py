"""Layers of one model over unequal nodes (Helix): which layers each node holds, for the most tokens a second.

Source      Mei et al., "Helix: Serving Large Language Models over Heterogeneous GPUs and Network via Max-Flow",
            ASPLOS 2025 (arXiv:2406.01566), sections 4.3 to 4.5
Sets        i in N nodes, alike within a type t (n_t of them), each of a region;  layers 1 to L
Parameters  T_i(k) [tokens/s] of a node that holds k layers, 0 where it has no room for them and their KV cache
            C_ij [tokens/s] of links, of source and sink;  q_t path of a layer, h of a hop;  P longest path
Variables   [s_i, e_i) layers of a node;  flow from the source over nodes with e_i = s_j to the sink
Objective   max flow
(C1) flow of i <= T_i(e_i - s_i);  flow of ij <= C_ij
(C2) h + (e_i - s_i) q_i, summed along every way of the flow, <= P  (h = 1, q = 0: hops)
Method      aligned stages: all nodes of a stage hold the same layers. For a flow, the nodes that make a stage of k
            layers are counted by type, and a dynamic program over counts covers L layers by the shortest path; the
            flow is bisected. Nodes that are alike change places where links between regions are too thin. The maximum
            flow over the links is the value, routing weights come from it.
Bound       every layer is held by nodes whose T sum up to the flow. So many can be: max sum_P z_P over patterns P of
            (type, k) with sum T_t(k) >= flow, k holders of a node at most; its dual has one price for each type, and
            its rows are cheapest covers (a knapsack). No flow is above one at which fewer than L layers can be held.
            Nor is it above the sum of the regions' own bounds and of what their links carry.
"""

import itertools
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner.arrays import Floats
from planner.errors import PlannerError
from planner.solvers.backends.model import LinearModel, total
from planner.solvers.backends.solve import solve
from planner.solvers.result import SolveResult, Status, relative_gap

WHERE = "layers"
UNITS = 4000  # steps of a flow, up to which patterns are told apart
PRECISION = 1e-3  # of a flow, to which it is bisected
EASIER = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7)  # of the flow without links, whose stages are tried where these are thin
EXCHANGES = 1000  # of nodes that are alike, tried where links are too thin
PATIENCE = 300
PARTS = 100  # of a token a second, to which flows are whole while nodes change places
MOST_STATES = 60_000  # counts of nodes by type; beyond, small types are left out of stages
DUST = 1e-9


@dataclass(frozen=True, slots=True)
class Node:
    """A node by its kind: tokens a second when it holds 1, 2, ... layers, the path of a layer, its region."""

    kind: str
    tokens_per_s: tuple[float, ...]
    layer_path: float = 0.0
    region: str = ""


@dataclass(frozen=True, eq=False)
class LayerProblem:
    """Nodes [N], links [N, N] and those of source and sink [N], all in tokens/s; raises PlannerError."""

    layers: int
    nodes: tuple[Node, ...]
    link_tokens_per_s: Floats
    source_tokens_per_s: Floats
    sink_tokens_per_s: Floats
    hop_path: float = 1.0
    longest_path: float = math.inf

    def __post_init__(self) -> None:
        n = len(self.nodes)
        shapes = self.link_tokens_per_s.shape, self.source_tokens_per_s.shape, self.sink_tokens_per_s.shape
        if shapes != ((n, n), (n,), (n,)):
            what = f"links of shapes {shapes} for {n} nodes"
            raise PlannerError(what, where=WHERE, hint="give a rate for every pair of nodes, and for source and sink")
        for name, rates in (
            ("links", self.link_tokens_per_s),
            ("source", self.source_tokens_per_s),
            ("sink", self.sink_tokens_per_s),
        ):
            if (rates < 0).any():
                raise PlannerError(f"{name} of {rates.min():g} tokens/s", where=WHERE, hint="give rates of 0 or more")
        for node in self.nodes:
            if any(rate < 0 for rate in node.tokens_per_s):
                what = f"node kind `{node.kind}` serves {min(node.tokens_per_s):g} tokens/s"
                raise PlannerError(what, where=WHERE, hint="give rates of 0 or more")
        held = sum(max(_useful(node), default=0) for node in self.nodes)
        if held < self.layers:
            what = f"all nodes together hold {held} of {self.layers} layers"
            raise PlannerError(what, where=WHERE, hint=f"add nodes that hold {self.layers - held} more")
        if not (self.source_tokens_per_s.any() and self.sink_tokens_per_s.any()):
            raise PlannerError("source or sink is cut off", where=WHERE, hint="give a link to a node at least")

    @cached_property
    def types(self) -> tuple[tuple[int, ...], ...]:
        """Nodes that are alike but for their region, those of a region beside each other."""
        alike: dict[tuple[tuple[float, ...], float], list[int]] = {}
        for index in sorted(range(len(self.nodes)), key=lambda i: (self.nodes[i].region, i)):
            node = self.nodes[index]
            alike.setdefault((node.tokens_per_s, node.layer_path), []).append(index)
        return tuple(tuple(nodes) for nodes in alike.values())


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """Layers [start, end) of every node, None where it holds none; tokens/s from node to node, -1: source, N: sink."""

    held: tuple[tuple[int, int] | None, ...]
    flow: dict[tuple[int, int], float]
    stages: int

    def weights(self, node: int) -> dict[int, float]:
        """Shares in which a node (-1: the source) hands requests on."""
        out = {j: rate for (i, j), rate in self.flow.items() if i == node and rate > 0.0}
        return {j: rate / sum(out.values()) for j, rate in out.items()}


def place_layers(problem: LayerProblem) -> SolveResult[LayerPlan]:
    """The most tokens a second that aligned stages give, over all nodes and in each region alone, and a bound on any.

    INFEASIBLE where no stages keep to the longest path.
    """
    started_s = time.perf_counter()
    best: tuple[float, LayerPlan] | None = None
    for nodes in _parts(problem):
        plan = _aligned(problem, nodes)
        if plan is not None and (best is None or plan[0] > best[0]):
            best = plan
    apart = _side_by_side(problem)
    if apart is not None and (best is None or apart[0] > best[0]):
        best = apart
    bound = flow_bound(problem, 0.0 if best is None else best[0])
    solve_s = time.perf_counter() - started_s
    solver = "aligned stages, patterns of holders"
    if best is None:
        return SolveResult(Status.INFEASIBLE, "finished", None, None, None, solve_s, solver)
    gap = relative_gap(best[0], bound)
    status = Status.OPTIMAL if gap is not None and gap <= PRECISION else Status.FEASIBLE
    return SolveResult(status, "finished", best[1], best[0], bound, solve_s, solver)


def frontier(problem: LayerProblem) -> list[tuple[int, float]]:
    """Hops and tokens a second of aligned stages, each more than with fewer hops."""
    rows: list[tuple[int, float]] = []
    for hops in range(1, min(problem.layers, len(problem.nodes)) + 1):
        limited = LayerProblem(
            problem.layers,
            problem.nodes,
            problem.link_tokens_per_s,
            problem.source_tokens_per_s,
            problem.sink_tokens_per_s,
            1.0,
            float(hops),
        )
        result = place_layers(limited)
        if result.objective is not None and (not rows or result.objective > rows[-1][1] * (1.0 + PRECISION)):
            rows.append((hops, result.objective))
    return rows


def _useful(node: Node) -> list[int]:
    return [k for k, rate in enumerate(node.tokens_per_s, start=1) if rate > 0.0]


def _parts(problem: LayerProblem) -> Iterator[tuple[int, ...]]:
    """All nodes, then those of each region."""
    yield tuple(range(len(problem.nodes)))
    regions = sorted({node.region for node in problem.nodes})
    if len(regions) > 1:
        for region in regions:
            yield tuple(i for i, node in enumerate(problem.nodes) if node.region == region)


def _side_by_side(problem: LayerProblem) -> tuple[float, LayerPlan] | None:
    """A pipeline of its own in every region that has one."""
    held: list[tuple[int, int] | None] = [None] * len(problem.nodes)
    stages = 0
    for nodes in itertools.islice(_parts(problem), 1, None):
        part = _aligned(problem, nodes)
        if part is not None:
            stages = max(stages, part[1].stages)
            for i in nodes:
                held[i] = part[1].held[i]
    return _valued(problem, held, stages) if stages else None


def _aligned(problem: LayerProblem, nodes: Sequence[int]) -> tuple[float, LayerPlan] | None:
    """The best aligned stages of some of the nodes, by bisection of their flow; valued by the maximum flow."""
    types = [tuple(i for i in alike if i in set(nodes)) for alike in problem.types]
    types = [alike for alike in types if alike]
    while math.prod(len(alike) + 1 for alike in types) > MOST_STATES:
        types.remove(min(types, key=lambda alike: len(alike) * _work(problem.nodes[alike[0]])))
    low, most = 0.0, _all_work(problem, nodes)
    high, reached = most, None
    while high - low > PRECISION * high and high > PRECISION * most:
        flow = (low + high) / 2.0 if low > 0.0 else high / 2.0
        stages = _stages(problem, types, flow)
        if stages is None:
            high = flow
        else:
            reached, low = stages, max(flow, _least_stage(problem, _held(problem, types, stages)))
            high = max(high, low)
    best: tuple[float, LayerPlan] | None = None
    for part in EASIER if reached is not None else ():
        if best is not None and best[0] >= part * low:
            break
        stages = reached if part == 1.0 else _stages(problem, types, part * low)
        if stages is not None:
            held = _linked(problem, types, _held(problem, types, stages), part * low)
            valued = _valued(problem, held, len(stages))
            best = valued if best is None or valued[0] > best[0] else best
    return best


def _work(node: Node) -> float:
    return max(k * rate for k, rate in enumerate(node.tokens_per_s, start=1))


def _stages(
    problem: LayerProblem, types: Sequence[tuple[int, ...]], flow: float
) -> list[tuple[int, tuple[int, ...]]] | None:
    """Stages, by layers and nodes of each type, that cover all layers with this flow on a short enough path."""
    from planner.solvers.compiled import layer_stages

    rows = list(_makes(problem, types, flow))
    if not rows:
        return None
    count_T = np.array([len(alike) for alike in types], dtype=np.int64)
    length_C = np.array([length for length, _ in rows], dtype=np.int64)
    used_CT = np.array([used for _, used in rows], dtype=np.int64)
    slowest = [max(problem.nodes[types[t][0]].layer_path for t, c in enumerate(used) if c) for _, used in rows]
    path_C = problem.hop_path + length_C * np.array(slowest)
    least, last = layer_stages.shortest_paths(count_T, problem.layers, length_C, used_CT, path_C)
    state = int(np.argmin(least[:, problem.layers]))
    if least[state, problem.layers] > problem.longest_path * (1.0 + DUST) or math.isinf(least[state, problem.layers]):
        return None
    radix = np.concatenate([[1], np.cumprod(count_T + 1)[:-1]])
    chosen, covered = [], problem.layers
    while covered:
        c = int(last[state, covered])
        chosen.append(rows[c])
        state -= int(radix @ used_CT[c])
        covered -= int(length_C[c])
    return chosen[::-1]


def _makes(
    problem: LayerProblem, types: Sequence[tuple[int, ...]], flow: float
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Every length of a stage, with the fewest nodes of each type that give the flow together."""
    longest = max(len(problem.nodes[alike[0]].tokens_per_s) for alike in types)
    for length in range(1, min(longest, problem.layers) + 1):
        rates = [_rate(problem.nodes[alike[0]], length) for alike in types]
        yield from ((length, used) for used in _fewest(rates, [len(alike) for alike in types], flow))


def _rate(node: Node, layers: int) -> float:
    return node.tokens_per_s[layers - 1] if layers <= len(node.tokens_per_s) else 0.0


def _fewest(rates: Sequence[float], counts: Sequence[int], flow: float) -> Iterator[tuple[int, ...]]:
    """Numbers of each type that come to the flow, of which none can be less."""
    (rate, *others), (count, *more) = rates, counts
    if not others:
        number = math.ceil(flow / rate * (1.0 - DUST)) if rate > 0.0 else (0 if flow <= 0.0 else count + 1)
        if max(number, 0) <= count:
            yield (max(number, 0),)
        return
    for number in range(count + 1 if rate > 0.0 else 1):
        left = flow - number * rate
        for rest in _fewest(others, more, max(left, 0.0)):
            least = min((r for r, c in zip(others, rest, strict=True) if c), default=math.inf)
            spare = number * rate + sum(r * c for r, c in zip(others, rest, strict=True)) - flow
            if number == 0 or spare < min(rate, least):
                yield (number, *rest)
        if left <= 0.0:
            return


def _held(
    problem: LayerProblem, types: Sequence[tuple[int, ...]], stages: Sequence[tuple[int, tuple[int, ...]]]
) -> list[tuple[int, int] | None]:
    """Layers of every node; those of no stage go where most is short in the slowest stage."""
    held: list[tuple[int, int] | None] = [None] * len(problem.nodes)
    free = [list(alike) for alike in types]
    spans, start = [], 0
    flow = []
    for length, used in stages:
        spans.append((start, start + length))
        rate = 0.0
        for t, number in enumerate(used):
            for _ in range(number):
                node = free[t].pop(0)
                held[node] = spans[-1]
                rate += _rate(problem.nodes[node], length)
        flow.append(rate)
        start += length
    for node in (node for alike in free for node in alike):
        gains = [_rate(problem.nodes[node], end - begin) for begin, end in spans]
        slowest = min((s for s, gain in enumerate(gains) if gain > 0.0), key=lambda s: flow[s], default=None)
        if slowest is not None:
            held[node] = spans[slowest]
            flow[slowest] += gains[slowest]
    return held


def _linked(
    problem: LayerProblem, types: Sequence[tuple[int, ...]], held: list[tuple[int, int] | None], wanted: float
) -> list[tuple[int, int] | None]:
    """The same stages, where links carry more of what is wanted: nodes that are alike change places by steps that
    carry no less. Where the links between regions are thin, stages of a region come to lie beside each other."""
    many = [alike for alike in types if len(alike) > 1]
    carried = _carried(problem, held)
    draws = random.Random(0)
    idle = 0  # exchanges since the last that carries more
    for _ in range(EXCHANGES if many else 0):
        if carried >= wanted * (1.0 - DUST) or idle >= PATIENCE:
            break
        a, b = draws.sample(draws.choice(many), 2)
        if held[a] == held[b] or problem.nodes[a].region == problem.nodes[b].region:
            continue
        held[a], held[b] = held[b], held[a]
        other = _carried(problem, held)
        idle = 0 if other > carried else idle + 1
        if other >= carried:
            carried = other
        else:
            held[a], held[b] = held[b], held[a]
    return held


def _carried(problem: LayerProblem, held: Sequence[tuple[int, int] | None]) -> float:
    """The maximum flow, rounded down to whole parts of a token a second; scipy's is much faster than networkx's."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    n = len(problem.nodes)
    start = np.array([-1 if span is None else span[0] for span in held])
    end = np.array([-2 if span is None else span[1] for span in held])
    rate = np.array(
        [_rate(node, e - s) if s >= 0 else 0.0 for node, s, e in zip(problem.nodes, start, end, strict=True)]
    )
    capacity = np.zeros((2 * n + 2, 2 * n + 2))
    joined = (end[:, None] == start[None, :]) & ~np.eye(n, dtype=bool)
    capacity[:n, n : 2 * n] = np.diag(rate)
    capacity[n : 2 * n, :n] = np.where(joined, np.minimum(problem.link_tokens_per_s, rate[:, None]), 0.0)
    capacity[2 * n, :n] = np.where(start == 0, np.minimum(problem.source_tokens_per_s, rate), 0.0)
    capacity[n : 2 * n, 2 * n + 1] = np.where(end == problem.layers, np.minimum(problem.sink_tokens_per_s, rate), 0.0)
    parts = csr_array(np.floor(capacity * PARTS).astype(np.int32))
    return float(maximum_flow(parts, 2 * n, 2 * n + 1).flow_value) / PARTS


def _least_stage(problem: LayerProblem, held: Sequence[tuple[int, int] | None]) -> float:
    rates: dict[tuple[int, int], float] = {}
    for node, span in zip(problem.nodes, held, strict=True):
        if span is not None:
            rates[span] = rates.get(span, 0.0) + _rate(node, span[1] - span[0])
    return min(rates.values())


def _valued(problem: LayerProblem, held: Sequence[tuple[int, int] | None], stages: int) -> tuple[float, LayerPlan]:
    """The maximum flow of what is held, over the links."""
    rate, flow = max_flow(problem, held)
    return rate, LayerPlan(tuple(held), flow, stages)


def max_flow(
    problem: LayerProblem, held: Sequence[tuple[int, int] | None]
) -> tuple[float, dict[tuple[int, int], float]]:
    """Tokens a second from source to sink, and over every link (-1: source, N: sink)."""
    import networkx

    graph: networkx.DiGraph[object] = networkx.DiGraph()
    n = len(problem.nodes)
    graph.add_nodes_from(["source", "sink"])
    for i, span in enumerate(held):
        if span is None:
            continue
        start, end = span
        graph.add_edge((i, "in"), (i, "out"), capacity=_rate(problem.nodes[i], end - start))
        if start == 0:
            graph.add_edge("source", (i, "in"), capacity=float(problem.source_tokens_per_s[i]))
        if end == problem.layers:
            graph.add_edge((i, "out"), "sink", capacity=float(problem.sink_tokens_per_s[i]))
        for j, other in enumerate(held):
            if other is not None and other[0] == end and i != j and problem.link_tokens_per_s[i, j] > 0.0:
                graph.add_edge((i, "out"), (j, "in"), capacity=float(problem.link_tokens_per_s[i, j]))
    path = networkx.algorithms.flow.shortest_augmenting_path  # preflows lose themselves in the rounding of rates
    rate, flows = networkx.maximum_flow(graph, "source", "sink", flow_func=path)
    over: dict[tuple[int, int], float] = {}
    for start_node, ends in flows.items():
        for end_node, tokens in ends.items():
            if tokens > 0.0 and not (isinstance(start_node, tuple) and start_node[1] == "in"):
                i = -1 if start_node == "source" else start_node[0]
                over[i, n if end_node == "sink" else end_node[0]] = float(tokens)
    return float(rate), over


def flow_bound(problem: LayerProblem, above: float = 0.0) -> float:
    """No layers on these nodes let more tokens a second through; `above` is what some do."""
    whole = _holders_bound(problem, range(len(problem.nodes)), above)
    ends = min(float(problem.source_tokens_per_s.sum()), float(problem.sink_tokens_per_s.sum()))
    parts = list(_parts(problem))[1:]
    if not parts:
        return min(whole, ends)
    region = np.array([node.region for node in problem.nodes])
    crossing = float(problem.link_tokens_per_s[region[:, None] != region[None, :]].sum())
    return min(whole, ends, sum(_holders_bound(problem, nodes) for nodes in parts) + crossing)


def _all_work(problem: LayerProblem, nodes: Sequence[int]) -> float:
    """Flow if every node did most of its work, with none left over."""
    return sum(_work(problem.nodes[i]) for i in nodes) / problem.layers


def _holders_bound(problem: LayerProblem, nodes: Sequence[int], above: float = 0.0) -> float:
    """The least flow, to a precision, at which patterns of holders cover fewer than all layers."""
    if sum(max(_useful(problem.nodes[i]), default=0) for i in nodes) < problem.layers:
        return 0.0
    low, high = above, _all_work(problem, nodes)
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
