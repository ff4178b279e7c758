"""Two models' training pipelines fused: our makespans beside published results, bounds and one after the other.

Usage: rl_fused.py INSTANCES.csv. Every instance is solved twice: without a limit on memory, as published, and with the
peak of the published schedule as the limit. Exits 1 where a makespan without the limit is above the published one, or
fewer than all but one reach the published bound.
"""

import csv
import sys
import time
from pathlib import Path

from inputs import exit_code, first_path

from planner.solvers.flow_shop import ShopSchedule
from planner.solvers.result import SolveResult
from planner.solvers.schedules.fused_pipelines import FusedProblem, Pipeline, solve_fused

Row = dict[str, str]
SLACK = 1e-4  # the published peaks are sums in single precision
CPU_LIMIT_S = 20.0


def pipelines(row: Row) -> tuple[Pipeline, ...]:
    """The large model over all nodes, and over each block of `pp1` nodes a small one in the other direction."""
    pipelines = [_pipeline(tuple(range(int(row["pp0"]))), row, "0")]
    width = int(row["pp1"])
    for first in range(0, int(row["pp0"]), width):
        pipelines.append(_pipeline(tuple(range(first + width - 1, first - 1, -1)), row, "1"))
    return tuple(pipelines)


def _pipeline(nodes: tuple[int, ...], row: Row, model: str) -> Pipeline:
    forward = (float(row[f"fwd{model}"]),) * len(nodes)
    backward = tuple(2 * f for f in forward)
    return Pipeline(nodes, int(row[f"mb{model}"]), forward, backward, float(row[f"mem{model}"]))


def main(path: Path) -> int:
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    print("exp  in turn  greedy  published  bound |  ours   gap  peak   CPU  | within published peak: ours   gap  CPU")
    at_bound, within, worse, slow = 0, 0, 0, 0.0
    for row in rows:
        nodes = int(row["pp0"])
        free, free_s = _solve(FusedProblem(pipelines(row)))
        capped, capped_s = _solve(FusedProblem(pipelines(row), (float(row["SA_peak_mem"]) + SLACK,) * nodes))
        assert free.objective is not None
        assert free.solution is not None
        assert capped.objective is not None
        at_bound += free.objective <= float(row["lower_bound"])
        within += capped.objective <= float(row["published_SA"])
        worse += free.objective > float(row["published_SA"])
        slow = max(slow, free_s, capped_s)
        print(
            f"{row['exp']:>3}  {row['serial_1f1b_sum']:>7}  {row['greedy']:>6}  {row['published_SA']:>9}  "
            f"{row['lower_bound']:>5} | {free.objective:5.0f}  {100 * (free.gap or 0):3.1f}%  {free.solution.peak:4.1f}"
            f"  {free_s:3.1f}s | {capped.objective:28.0f}  {100 * (capped.gap or 0):3.1f}% {capped_s:4.1f}s"
        )
    print(f"at the published bound: {at_bound} of {len(rows)} (published: {_published_at_bound(rows)})")
    print(f"above the published makespan: {worse}; at it or below within the published peak: {within} of {len(rows)}")
    print(f"slowest: {slow:.1f} s of user CPU")
    return int(worse > 0 or at_bound < len(rows) - 1 or slow > CPU_LIMIT_S)


def _solve(problem: FusedProblem) -> tuple[SolveResult[ShopSchedule], float]:
    started = time.process_time()
    return solve_fused(problem), time.process_time() - started


def _published_at_bound(rows: list[Row]) -> int:
    return sum(float(row["published_SA"]) <= float(row["lower_bound"]) for row in rows)


if __name__ == "__main__":
    sys.exit(exit_code(main(first_path())))
