"""Layers of one model over unequal nodes (Helix): tokens a second through all layers."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse.csgraph import connected_components

from case_kinds import CaseAnswer
from planner.arrays import Floats, Ints
from planner.solvers.placement.layers.place import place_layers
from planner.solvers.placement.layers.problem import LayerProblem, Node

THIN = 4.0  # times the thinnest link, above which links are told apart


def problem_of(case: dict[str, Any]) -> tuple[LayerProblem, list[str]]:
    """The problem, and the names of its nodes in order."""
    names = sorted(case["nodes"], key=lambda name: (len(name), name))
    rates = case["edge_capacity_tokens_per_s"]
    links = np.array([[rates.get(f"{a}_{b}", 0.0) for b in names] for a in names])
    nodes = []
    for name, region in zip(names, _regions(links), strict=True):
        table = {int(k): rate for k, rate in case["nodes"][name]["tokens_per_s_by_layers"].items()}
        nodes.append(Node("", tuple(table.get(k, 0.0) for k in range(1, max(table) + 1)), region=f"r{region}"))
    source = np.array([rates.get(f"source_{name}", 0.0) for name in names])
    sink = np.array([rates.get(f"{name}_sink", 0.0) for name in names])
    return LayerProblem(case["num_layers"], tuple(nodes), links, source, sink), names


def _regions(links: Floats) -> Ints:
    """Regions by what their nodes have in common: links well above the thinnest, where links differ by far. [N]"""
    there = links[links > 0.0]
    if not len(there) or there.max() <= THIN * there.min():
        return np.zeros(len(links), dtype=np.int64)
    return np.asarray(connected_components(links > math.sqrt(there.max() * there.min()), directed=False)[1], np.int64)


def solve(case: dict[str, Any], directory: Path) -> CaseAnswer:
    """The layers of every node, valued by the maximum flow."""
    problem, names = problem_of(case)
    result = place_layers(problem)
    if result.solution is None or result.objective is None:
        raise ValueError("no stages cover all layers")
    held = {name: list(span) for name, span in zip(names, result.solution.held, strict=True) if span is not None}
    spans = {span for span in result.solution.held if span is not None}
    return CaseAnswer({"solution": held}, result.objective, result.bound, f"{len(spans)} spans")
