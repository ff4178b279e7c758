"""The order of clusters that are moved to a GPU and computed on it, in a buffer of limited size: least makespan.

Source      Zhang et al., "Rummy: Fast Vector Query Processing for Large Datasets Beyond GPU Memory", NSDI 2024, section
            4; Johnson, Naval Research Logistics Quarterly 1 (1954): optimal without the buffer
Sets        i in I clusters
Parameters  t_i [s] transfer, c_i [s] compute, b_i [bytes], B [bytes] of the buffer
Variables   an order of I;  u_i, v_i [s] starts of transfer and compute
Minimise    max_i (v_i + c_i)
(C1) transfers do not overlap, computes do not overlap, both in the same order
(C2) v_i >= u_i + t_i
(C3) sum over i with u_i <= x < v_i + c_i of b_i <= B        at every time x

Method      Johnson's order and orders one move away from it, each read off in O(|I| log |I|); CP-SAT from the best.
Bound       Johnson's makespan without the buffer; all bytes times the least time each is held, over the buffer.
"""

import heapq
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from planner.errors import PlannerError
from planner.solvers.result import SolveResult, Status

WHERE = "clusters"
TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Clusters:
    """Transfer and compute seconds and bytes by cluster; raises PlannerError for a cluster that never fits."""

    transfer_s_I: tuple[float, ...]
    compute_s_I: tuple[float, ...]
    bytes_I: tuple[float, ...]
    buffer_bytes: float

    def __post_init__(self) -> None:
        rows = (self.transfer_s_I, self.compute_s_I, self.bytes_I)
        if not self.transfer_s_I or len({len(row) for row in rows}) > 1:
            counts = ", ".join(str(len(row)) for row in rows)
            raise PlannerError(
                f"{counts} transfers, computes and sizes", where=WHERE, hint="give each cluster all three"
            )
        if not all(math.isfinite(value) and value >= 0 for row in rows for value in row):
            raise PlannerError("times and bytes must be numbers of 0 or more", where=WHERE)
        largest = max(self.bytes_I)
        if largest > self.buffer_bytes:
            what = f"a cluster of {largest:g} bytes in a buffer of {self.buffer_bytes:g}"
            raise PlannerError(what, where=WHERE, hint=f"give a buffer of at least {largest:g} bytes")


def makespan_s(problem: Clusters, order: Sequence[int]) -> float:
    """The end of the last compute, every start as early as the order and the buffer let it be."""
    link_s = gpu_s = used = 0.0
    held: list[tuple[float, float]] = []  # end of compute, bytes
    for cluster in order:
        size, start_s = problem.bytes_I[cluster], link_s
        while held and (held[0][0] <= start_s or used + size > problem.buffer_bytes):
            end_s, given_back = heapq.heappop(held)
            start_s, used = max(start_s, end_s), used - given_back
        link_s = start_s + problem.transfer_s_I[cluster]
        gpu_s = max(gpu_s, link_s) + problem.compute_s_I[cluster]
        heapq.heappush(held, (gpu_s, size))
        used = sum(of for _, of in held)
    return gpu_s


def johnson(problem: Clusters) -> tuple[int, ...]:
    """Johnson's order: short transfers first where the compute is longer, short computes last elsewhere."""

    def key(cluster: int) -> tuple[int, float]:
        transfer_s, compute_s = problem.transfer_s_I[cluster], problem.compute_s_I[cluster]
        return (0, transfer_s) if transfer_s <= compute_s else (1, -compute_s)

    return tuple(sorted(range(len(problem.transfer_s_I)), key=key))


def lower_bound_s(problem: Clusters) -> float:
    """The larger of Johnson's makespan without the buffer and the time for which the buffer must hold all bytes."""
    free = Clusters(problem.transfer_s_I, problem.compute_s_I, problem.bytes_I, math.inf)
    rows = zip(problem.transfer_s_I, problem.compute_s_I, problem.bytes_I, strict=True)
    held = sum(size * (transfer_s + compute_s) for transfer_s, compute_s, size in rows)
    return max(makespan_s(free, johnson(free)), held / problem.buffer_bytes if problem.buffer_bytes else 0.0)


def nearby_order(problem: Clusters, order: Sequence[int]) -> tuple[int, ...]:
    """From this order, single clusters moved as long as that shortens the makespan; O(|I|^3 log |I|) a round."""
    best, best_s = tuple(order), makespan_s(problem, order)
    improved = True
    while improved:
        improved = False
        for taken in range(len(best)):
            rest = best[:taken] + best[taken + 1 :]
            for place in range(len(best)):
                moved = (*rest[:place], best[taken], *rest[place:])
                moved_s = makespan_s(problem, moved)
                if moved_s < best_s - TOLERANCE * best_s:
                    best, best_s, improved = moved, moved_s, True
                    break
            if improved:
                break
    return best


def least_makespan(problem: Clusters, *, time_limit_s: float = 60.0, seed: int = 0) -> SolveResult[tuple[int, ...]]:
    """The order of least makespan [s], with what is proven."""
    from planner.solvers.backends.cpsat_transfers import BufferedRows, improve

    started_s = time.perf_counter()
    bound_s = lower_bound_s(problem)
    order = nearby_order(problem, johnson(problem))
    value_s, stop, solver = makespan_s(problem, order), "finished", "Johnson's order and moves"
    if bound_s < value_s * (1.0 - TOLERANCE):
        rows = BufferedRows(problem.transfer_s_I, problem.compute_s_I, problem.bytes_I, problem.buffer_bytes)
        improved = improve(rows, bound_s, value_s, time_limit_s=time_limit_s, seed=seed)
        bound_s, stop, solver = max(bound_s, improved.bound_s), improved.stop_reason, improved.solver
        if improved.order is not None and makespan_s(problem, improved.order) < value_s:
            order = improved.order
            value_s = makespan_s(problem, order)
    proven = bound_s >= value_s * (1.0 - TOLERANCE)
    status = Status.OPTIMAL if proven else Status.FEASIBLE
    return SolveResult(status, stop, order, value_s, min(bound_s, value_s), time.perf_counter() - started_s, solver)
