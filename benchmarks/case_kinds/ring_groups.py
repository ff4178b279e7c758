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
    problem = problem_of(case)
    result = fewest_crossings(problem)
    if result.solution is None or result.objective is None:
        most = len(problem.whole_segments())
        raise ValueError(
            f"nodes at most {case['hops']} apart form {most} groups of {case['nodes_per_group']}, and "
            f"{2 * problem.pairs} are to exchange in pairs: ask for {most // 2 * 2}, or more hops"
        )
    pairs = [[[group.line, list(group.tors)] for group in pair] for pair in result.solution.pairs]
    return CaseAnswer({"pairs": pairs}, result.objective, result.bound, f"{len(pairs)} pairs, {result.status}")
