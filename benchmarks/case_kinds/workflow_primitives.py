"""Primitives of queries in batches on engines (Teola); milliseconds as the case has them."""

from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from case_kinds import CaseAnswer
from planner.solvers.workflow.engine_batches import EngineBatches, Primitive, PrimitiveType, least_mean_latency

TIME_LIMIT_S = 60.0


def solve(case: dict[str, Any], directory: Path) -> CaseAnswer:
    """Batches of least mean latency, with what is proven."""
    graph, types = case["graph"], list(case["types"])
    engines = sorted({kind["engine"] for kind in case["types"].values()})
    order = list(TopologicalSorter({name: node["after"] for name, node in graph.items()}).static_order())
    place = {name: number for number, name in enumerate(order)}
    problem = EngineBatches(
        tuple(
            Primitive(types.index(graph[name]["type"]), tuple(place[parent] for parent in graph[name]["after"]))
            for name in order
        ),
        tuple(
            PrimitiveType(engines.index(kind["engine"]), kind["alpha_ms"], kind["beta_ms"], kind["max_batch"])
            for kind in case["types"].values()
        ),
        tuple(case["release_ms"]),
    )
    result = least_mean_latency(problem, time_limit_s=TIME_LIMIT_S)
    if result.solution is None or result.objective is None:
        raise ValueError(f"no batches: {result.status}")
    batches = [
        {
            "engine": engines[problem.types[batch.type].engine],
            "start": batch.start_s,
            "members": [[query, order[node]] for query, node in batch.members],
        }
        for batch in result.solution
    ]
    return CaseAnswer({"batches": batches}, result.objective, result.bound, f"{len(batches)} batches; {result.status}")
