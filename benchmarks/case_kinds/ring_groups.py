"""Groups on k-hop rings that exchange rank by rank (InfiniteHBD): exchanges between different ToRs."""

from pathlib import Path
from typing import Any

from case_kinds import CaseAnswer
from planner.solvers.topology.exchanges import Exchanges, fewest_crossings


def problem_of(case: dict[str, Any]) -> Exchanges:
    return Exchanges(
        tors=case["tors"],
        lines=case["lines"],
        hops=case["hops"],
        nodes_per_group=case["nodes_per_group"],
        groups=case["groups"],
        faulty=frozenset((tor, line) for tor, line in case["faulty"]),
    )


def solve(case: dict[str, Any], directory: Path) -> CaseAnswer:
    result = fewest_crossings(problem_of(case))
    if result.solution is None or result.objective is None:
        raise ValueError(f"the healthy nodes have no room for {case['groups']} groups")
    pairs = [[[group.line, list(group.tors)] for group in pair] for pair in result.solution.pairs]
    return CaseAnswer({"pairs": pairs}, result.objective, result.bound, f"{len(pairs)} pairs, {result.status}")
