"""The order in which clusters are moved to a GPU and computed there (Rummy); milliseconds as the case has them."""

from pathlib import Path
from typing import Any

from case_kinds import CaseAnswer
from planner.solvers.workflow.transfer_order import Clusters, least_makespan


def solve(case: dict[str, Any], directory: Path) -> CaseAnswer:
    """The order of least makespan, with what is proven."""
    problem = Clusters(
        tuple(case["transfer_ms"]), tuple(case["compute_ms"]), tuple(case["bytes"]), case["buffer_bytes"]
    )
    result = least_makespan(problem)
    if result.solution is None or result.objective is None:
        raise ValueError(f"no order: {result.status}")
    return CaseAnswer({"order": list(result.solution)}, result.objective, result.bound, str(result.status))
