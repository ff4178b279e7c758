"""Layers of one model over unequal nodes (Helix): which layers each node holds, for the most tokens a second.

Source      Mei et al., "Helix: Serving Large Language Models over Heterogeneous GPUs and Network via Max-Flow",
            ASPLOS 2025 (arXiv:2406.01566), sections 4.3 to 4.5
Sets        i in N nodes, alike within a type t (n_t of them), each of a region;  layers 1 to L
Parameters  T_i(k) [tokens/s] of a node that holds k layers, 0 where it has no room for them and their KV cache
            C_ij [tokens/s] of links, of source and sink;  q_t path of a layer, h of a hop;  P longest path
Variables   [s_i, e_i) layers of a node;  flow from the source over nodes with e_i = s_j to the sink
Objective   max flow
(C1) flow of i <= T_i(e_i - s_i);  flow of ij <= C_ij
(C2) h + (e_i - s_i) q_i, summed along every chain of spans from layer 0 on, <= P  (h = 1, q = 0: hops); chains
     count whether requests go that way or not, so that no routing of the flow passes more
Method      aligned stages: all nodes of a stage hold the same layers. For a flow, the nodes that make a stage of k
            layers are counted by type, and a dynamic program over counts covers L layers by the shortest path; the
            flow is bisected. Nodes that are alike change places where links between regions are too thin; or regions
            take layers one behind the other, with their widest stages where they meet, or each takes all of them. The
            maximum flow over the links is the value, routing weights come from it.
Bound       every layer is held by nodes whose T sum up to the flow. So many can be: max sum_P z_P over patterns P of
            (type, k) with sum T_t(k) >= flow, k holders of a node at most; its dual has one price for each type, and
            its rows are cheapest covers (a knapsack). No flow is above one at which fewer than L layers can be held.
            Nor is it above the sum of the regions' own bounds and of what their links carry; and there is none where
            spans of any nodes that cover L layers make a path above P.
"""

import itertools
import random
from collections.abc import Sequence

from planner.solvers.placement.layers.flow import carried, max_flow, short_enough
from planner.solvers.placement.layers.problem import (
    DUST,
    PRECISION,
    LayerPlan,
    LayerProblem,
    all_work,
    parts_of,
    rate_of,
)
from planner.solvers.placement.layers.stage_counts import StageTable, stage_table, stages_of, types_of

EASIER = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7)  # of the flow without links, whose stages are tried where these are thin
EXCHANGES = 1000  # of nodes that are alike, tried where links are too thin
PATIENCE = 300
MOST_ROWS = 3  # regions that are put one behind the other


def best_stages(problem: LayerProblem) -> tuple[float, LayerPlan] | None:
    """The aligned stages with most tokens a second, and these; None where none keep to the longest path."""
    best: tuple[float, LayerPlan] | None = None
    for nodes in parts_of(problem):
        plan = _aligned(problem, nodes)
        if plan is not None and (best is None or plan[0] > best[0]):
            best = plan
    apart = _side_by_side(problem)
    if apart is not None and (best is None or apart[0] > best[0]):
        best = apart
    return _in_rows(problem, best)


def _side_by_side(problem: LayerProblem) -> tuple[float, LayerPlan] | None:
    """A pipeline of its own in every region that has one."""
    held: list[tuple[int, int] | None] = [None] * len(problem.nodes)
    for nodes in itertools.islice(parts_of(problem), 1, None):
        part = _aligned(problem, nodes)
        if part is not None:
            for i in nodes:
                held[i] = part[1].held[i]
    if not any(held) or not short_enough(problem, held):
        return None
    return _valued(problem, held)


def _in_rows(problem: LayerProblem, best: tuple[float, LayerPlan] | None) -> tuple[float, LayerPlan] | None:
    """Regions one behind the other, in every order of a few, where that carries more than the best so far.

    The largest flow at which they hold all layers together, or, where the links that they meet over carry less, that of
    an easier flow, which leaves more nodes where they meet.
    """
    parts = [types_of(problem, nodes) for nodes in itertools.islice(parts_of(problem), 1, None)]
    if not 1 < len(parts) <= MOST_ROWS:
        return best
    low, high = 0.0 if best is None else best[0], all_work(problem, range(len(problem.nodes)))
    reachable = False
    while high - low > PRECISION * high:
        flow = (low + high) / 2.0
        held = sum(len(stage_table(problem, types, flow).reach()) - 1 for types in parts)
        reachable |= held >= problem.layers
        low, high = (flow, high) if held >= problem.layers else (low, flow)
    for part in EASIER if reachable else ():
        if best is not None and part * low <= best[0] * (1.0 + PRECISION):
            break
        tables = [(types, stage_table(problem, types, part * low)) for types in parts]
        for order in itertools.permutations(tables):
            plan = _row(problem, order)
            if plan is not None and (best is None or plan[0] > best[0]):
                best = plan
    return best


def _row(
    problem: LayerProblem, order: Sequence[tuple[Sequence[tuple[int, ...]], StageTable]]
) -> tuple[float, LayerPlan] | None:
    """Regions in an order, each with its part of the layers by what it can hold; None where the paths are too long."""
    reach = [table.reach() for _, table in order]
    most = [len(paths) - 1 for paths in reach]
    if sum(most) < problem.layers:
        return None
    shares, left = [], problem.layers
    for index, layers in enumerate(most):
        after = sum(most[index + 1 :])
        shares.append(max(min(round(layers * left / max(layers + after, 1)), layers), left - after))
        left -= shares[-1]
    if sum(paths[share] for paths, share in zip(reach, shares, strict=True)) > problem.longest_path * (1.0 + DUST):
        return None
    held: list[tuple[int, int] | None] = [None] * len(problem.nodes)
    start = 0
    for index, ((types, table), share) in enumerate(zip(order, shares, strict=True)):
        chosen = table.stages(share, problem.longest_path) if share else []
        if chosen is None:
            return None
        chosen = _widest_outside(chosen, first=index == 0, last=index == len(order) - 1)
        own = _held(problem, types, chosen) if chosen else held
        for node in (node for alike in types for node in alike):
            span = own[node]
            held[node] = None if span is None else (span[0] + start, span[1] + start)
        start += share
    return _valued(problem, held)


def _widest_outside(
    stages: list[tuple[int, tuple[int, ...]]], *, first: bool, last: bool
) -> list[tuple[int, tuple[int, ...]]]:
    """Stages with those of most nodes at the ends that meet another region."""
    by_width = sorted(stages, key=lambda stage: sum(stage[1]))
    if first:
        return by_width
    return by_width[::-1] if last else [*by_width[1::2][::-1], *by_width[::2]]


def _aligned(problem: LayerProblem, nodes: Sequence[int]) -> tuple[float, LayerPlan] | None:
    """The best aligned stages of some of the nodes, by bisection of their flow; valued by the maximum flow."""
    types = types_of(problem, nodes)
    low, most = 0.0, all_work(problem, nodes)
    high, reached = most, None
    while high - low > PRECISION * high and high > PRECISION * most:
        flow = (low + high) / 2.0 if low > 0.0 else high / 2.0
        stages = stages_of(problem, types, flow)
        if stages is None:
            high = flow
        else:
            reached, low = stages, max(flow, _least_stage(problem, _held(problem, types, stages)))
            high = max(high, low)
    best: tuple[float, LayerPlan] | None = None
    for part in EASIER if reached is not None else ():
        if best is not None and best[0] >= part * low:
            break
        stages = reached if part == 1.0 else stages_of(problem, types, part * low)
        if stages is not None:
            held = _linked(problem, types, _held(problem, types, stages), part * low)
            valued = _valued(problem, held)
            best = valued if best is None or valued[0] > best[0] else best
    return best


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
                rate += rate_of(problem.nodes[node], length)
        flow.append(rate)
        start += length
    for node in (node for alike in free for node in alike):
        gains = [rate_of(problem.nodes[node], end - begin) for begin, end in spans]
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
    now = carried(problem, held)
    draws = random.Random(0)
    idle = 0  # exchanges since the last that carries more
    for _ in range(EXCHANGES if many else 0):
        if now >= wanted * (1.0 - DUST) or idle >= PATIENCE:
            break
        a, b = draws.sample(draws.choice(many), 2)
        if held[a] == held[b] or problem.nodes[a].region == problem.nodes[b].region:
            continue
        held[a], held[b] = held[b], held[a]
        other = carried(problem, held)
        idle = 0 if other > now else idle + 1
        if other >= now:
            now = other
        else:
            held[a], held[b] = held[b], held[a]
    return held


def _least_stage(problem: LayerProblem, held: Sequence[tuple[int, int] | None]) -> float:
    rates: dict[tuple[int, int], float] = {}
    for node, span in zip(problem.nodes, held, strict=True):
        if span is not None:
            rates[span] = rates.get(span, 0.0) + rate_of(node, span[1] - span[0])
    return min(rates.values())


def _valued(problem: LayerProblem, held: Sequence[tuple[int, int] | None]) -> tuple[float, LayerPlan]:
    """The maximum flow of what is held, over the links."""
    rate, flow = max_flow(problem, held)
    return rate, LayerPlan(tuple(held), flow)
