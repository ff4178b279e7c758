"""Layers of one model over unequal nodes (Helix): tokens a second through all layers."""

from pathlib import Path
from typing import Any

import numpy as np

from case_kinds import CaseAnswer
from planner.solvers.placement.layers import LayerProblem, Node, place_layers


def problem_of(case: dict[str, Any]) -> tuple[LayerProblem, list[str]]:
    """The problem, and the names of its nodes in order."""
    names = sorted(case["nodes"], key=lambda name: (len(name), name))
    rates = case["edge_capacity_tokens_per_s"]
    nodes = []
    for name in names:
        table = {int(k): rate for k, rate in case["nodes"][name]["tokens_per_s_by_layers"].items()}
        nodes.append(Node("", tuple(table.get(k, 0.0) for k in range(1, max(table) + 1))))
    links = np.array([[rates.get(f"{a}_{b}", 0.0) for b in names] for a in names])
    source = np.array([rates.get(f"source_{name}", 0.0) for name in names])
    sink = np.array([rates.get(f"{name}_sink", 0.0) for name in names])
    return LayerProblem(case["num_layers"], tuple(nodes), links, source, sink), names


def solve(case: dict[str, Any], directory: Path) -> CaseAnswer:
    """The layers of every node, valued by the maximum flow."""
    problem, names = problem_of(case)
    result = place_layers(problem)
    if result.solution is None or result.objective is None:
        raise ValueError("no stages cover all layers")
    held = {name: list(span) for name, span in zip(names, result.solution.held, strict=True) if span is not None}
    return CaseAnswer({"solution": held}, result.objective, result.bound, f"{result.solution.stages} stages")
