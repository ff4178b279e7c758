"""Makespan of equal tasks on uniform machines (Q | p_j = 1 | C_max): the last one done as early as can be.

Sets        m in M machines
Parameters  t_m [s] of a task, c_m tasks that fit at most;  N tasks
Variables   n_m in {0, ..., c_m}
Minimise    max t_m n_m
(C1) sum n_m = N

Greedy is exact: the N smallest of all finishing times t_m k, k = 1, ..., c_m, are a choice that fits (those of a
machine rise with k), and every choice of N tasks ends no earlier than the N-th smallest (Graham, SIAM J. Appl. Math.
17, 1969).
"""

import heapq
import time
from collections.abc import Sequence

from planner.errors import PlannerError
from planner.solvers.result import SolveResult, Status


def spread_tasks(
    tasks: int, task_s: Sequence[float], most: Sequence[int] | None = None
) -> SolveResult[tuple[int, ...]]:
    """Tasks of each machine, proven optimal; O(tasks log machines). INFEASIBLE where they do not fit."""
    started = time.perf_counter()
    limits = [tasks] * len(task_s) if most is None else list(most)
    if tasks < 0 or len(limits) != len(task_s) or any(seconds <= 0.0 for seconds in task_s):
        raise PlannerError("tasks are counted, and each machine takes a time above 0 for one", where="machines")
    if sum(limits) < tasks:
        return SolveResult(Status.INFEASIBLE, "finished", None, None, None, time.perf_counter() - started)
    counts = [0] * len(task_s)
    heap = [(seconds, machine) for machine, seconds in enumerate(task_s) if limits[machine] > 0]
    heapq.heapify(heap)
    last = 0.0
    for _ in range(tasks):
        last, machine = heapq.heappop(heap)
        counts[machine] += 1
        if counts[machine] < limits[machine]:
            heapq.heappush(heap, ((counts[machine] + 1) * task_s[machine], machine))
    return SolveResult(Status.OPTIMAL, "finished", tuple(counts), last, last, time.perf_counter() - started, "greedy")
