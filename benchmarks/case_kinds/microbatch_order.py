"""Unlike micro-batches on the replicas of a 1F1B pipeline, and their orders."""

from pathlib import Path
from typing import Any

import numpy as np

from case_kinds import CaseAnswer
from planner.solvers.modalities.sample_orders import SampleOrders, best_orders

SMALL: dict[str, Any] = {
    "replicas": 2,
    "ranks": 2,
    "samples": [{"forward_s": [1.0, step], "backward_s": [2.0, step]} for step in (1.0, 2.0, 3.0, 4.0)],
}


def solve(case: dict[str, Any], directory: Path) -> CaseAnswer:
    """Orders of all replicas."""
    forward_NR, backward_NR = (
        np.array([sample[way] for sample in case["samples"]], float) for way in ("forward_s", "backward_s")
    )
    result = best_orders(SampleOrders(forward_NR, backward_NR, int(case["replicas"])))
    assert result.solution is not None
    assert result.objective is not None
    answer = {"replicas": [list(order) for order in result.solution]}
    return CaseAnswer(answer, result.objective, result.bound, f"{result.status}, {result.stop_reason}")
