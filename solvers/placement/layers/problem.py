"""One model over unequal nodes: rates by layers, links, and what is held; what a placement of layers is about."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from planner.arrays import Floats
from planner.errors import PlannerError

WHERE = "layers"
Held = tuple[tuple[int, int] | None, ...]
"""Layers [start, end) of every node; None where it holds none."""
DUST = 1e-9
PRECISION = 1e-3  # of a flow, to which it is bisected


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
        held = sum(max(useful(node), default=0) for node in self.nodes)
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
    """What nodes hold, and tokens/s from node to node, -1: source, N: sink."""

    held: Held
    flow: dict[tuple[int, int], float]


def useful(node: Node) -> list[int]:
    """Numbers of layers that a node can hold and serve."""
    return [k for k, rate in enumerate(node.tokens_per_s, start=1) if rate > 0.0]


def parts_of(problem: LayerProblem) -> Iterator[tuple[int, ...]]:
    """All nodes, then those of each region."""
    yield tuple(range(len(problem.nodes)))
    regions = sorted({node.region for node in problem.nodes})
    if len(regions) > 1:
        for region in regions:
            yield tuple(i for i, node in enumerate(problem.nodes) if node.region == region)


def work_of(node: Node) -> float:
    """The most layers times tokens a second that a node does."""
    return max(k * rate for k, rate in enumerate(node.tokens_per_s, start=1))


def rate_of(node: Node, layers: int) -> float:
    """Tokens a second of a node with so many layers; 0 where it cannot hold them."""
    return node.tokens_per_s[layers - 1] if layers <= len(node.tokens_per_s) else 0.0


def all_work(problem: LayerProblem, nodes: Sequence[int]) -> float:
    """Flow if every node did most of its work, with none left over."""
    return sum(work_of(problem.nodes[i]) for i in nodes) / problem.layers
