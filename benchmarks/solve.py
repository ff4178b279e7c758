"""User CPU of whole `planner solve` processes on the example problems, and what a one-line rule would have answered.

The limits are ours; the times beside them are those of NVIDIA AIConfigurator 0.12.0 for the same three problems.
"""

import json
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from processes import user_cpu_s

RUNS = 5
EXAMPLES = Path(__file__).parent.parent / "examples"
TENSOR_SIZES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class Case:
    """A problem, the user CPU that a solve of it may take, and what the peer takes."""

    problem: str
    limit_s: float
    peer_s: float


CASES = (
    Case("serve-qwen3-32b-h200.yaml", 2.0, 14.4),
    Case("serve-deepseek-v3-h200.yaml", 5.0, 40.9),
    Case("serve-qwen3-235b-h200.yaml", 5.0, 45.2),
)


def rule_of_thumb(problem: Path) -> float | None:
    """The objective of: colocated, the smallest tensor-parallel size that meets the limits, its largest batch.

    Same costs as the solve; None when no tensor-parallel size alone meets the limits.
    """
    from planner import load_problem, solve
    from planner.errors import Infeasible

    fixed = ["options.modes=[colocated]", "options.pp=[1]", "options.dp=[1]", "options.ep=[1]"]
    for size in TENSOR_SIZES:
        try:
            plan = solve(load_problem(problem, overrides=[*fixed, f"options.tp=[{size}]"]), level="static")
        except Infeasible:
            continue
        return plan.certificate.objective.value
    return None


def main() -> int:
    """Print one line a case; 1 when a median is above its limit."""
    slow = 0
    print(f"{'problem':32} {'user CPU':>9} {'limit':>7} {'peer':>7}  {'objective':>10} {'rule':>10}")
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.json"
        for case in CASES:
            problem = EXAMPLES / case.problem
            median_s = statistics.median(
                user_cpu_s("solve", problem, "--level", "static", "-o", plan) for _ in range(RUNS)
            )
            objective = json.loads(plan.read_text())["certificate"]["objective"]["value"]
            rule = rule_of_thumb(problem)
            ruled = f"{rule:10.4g}" if rule is not None else f"{'none':>10}"
            times = f"{median_s:7.2f} s {case.limit_s:5.1f} s {case.peer_s:5.1f} s"
            print(f"{case.problem:32} {times}  {objective:10.4g} {ruled}", flush=True)
            slow += median_s > case.limit_s
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
