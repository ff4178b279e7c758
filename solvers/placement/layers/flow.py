"""The flow over layers that nodes hold: the most tokens a second over the links, and how long chains of spans are."""

from collections.abc import Mapping, Sequence

import numpy as np

from planner.solvers.placement.layers.problem import DUST, LayerProblem, rate_of

PARTS = 100  # of a token a second, to which flows are whole while nodes change places


def carried(problem: LayerProblem, held: Sequence[tuple[int, int] | None]) -> float:
    """The maximum flow, rounded down to whole parts of a token a second; a search asks for it hundreds of times."""
    from planner.solvers.compiled import layer_stages

    n = len(problem.nodes)
    start = np.array([-1 if span is None else span[0] for span in held])
    end = np.array([-2 if span is None else span[1] for span in held])
    rate = np.array(
        [rate_of(node, e - s) if s >= 0 else 0.0 for node, s, e in zip(problem.nodes, start, end, strict=True)]
    )
    capacity = np.zeros((2 * n + 2, 2 * n + 2))
    joined = (end[:, None] == start[None, :]) & ~np.eye(n, dtype=bool)
    capacity[:n, n : 2 * n] = np.diag(rate)
    capacity[n : 2 * n, :n] = np.where(joined, np.minimum(problem.link_tokens_per_s, rate[:, None]), 0.0)
    capacity[2 * n, :n] = np.where(start == 0, np.minimum(problem.source_tokens_per_s, rate), 0.0)
    capacity[n : 2 * n, 2 * n + 1] = np.where(end == problem.layers, np.minimum(problem.sink_tokens_per_s, rate), 0.0)
    return int(layer_stages.most_flow(np.floor(capacity * PARTS).astype(np.int64), 2 * n, 2 * n + 1)) / PARTS


def longest_chain(paths: Mapping[tuple[int, int], float]) -> float:
    """The longest path over spans that follow one another from layer 0 on, by the path of each; 0 where none does."""
    reached = {0: 0.0}
    for start, end in sorted(paths):
        if start in reached:
            reached[end] = max(reached.get(end, 0.0), reached[start] + paths[start, end])
    return max(reached.values())


def short_enough(problem: LayerProblem, held: Sequence[tuple[int, int] | None]) -> bool:
    """Whether what nodes hold keeps to the longest path (C2)."""
    paths: dict[tuple[int, int], float] = {}
    for node, span in zip(problem.nodes, held, strict=True):
        if span is not None:
            path = problem.hop_path + (span[1] - span[0]) * node.layer_path
            paths[span] = max(paths.get(span, 0.0), path)
    return longest_chain(paths) <= problem.longest_path * (1.0 + DUST)


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
        graph.add_edge((i, "in"), (i, "out"), capacity=rate_of(problem.nodes[i], end - start))
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
