"""What every solver returns: status, stop reason, solution, objective, and a proven bound on the optimum."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, Literal, TypeVar

S = TypeVar("S")


class Status(StrEnum):
    """What was proven; a time limit is not a status."""

    OPTIMAL = "optimal"  # solution present, gap within tolerance, proven
    FEASIBLE = "feasible"  # solution present, not proven optimal
    INFEASIBLE = "infeasible"  # proven that no solution exists
    UNKNOWN = "unknown"  # stopped with neither a solution nor a proof


def relative_gap(objective: float | None, bound: float | None) -> float | None:
    """|objective - bound| / max(|objective|, 1e-9); None if either is missing."""
    if objective is None or bound is None:
        return None
    return abs(objective - bound) / max(abs(objective), 1e-9)


def relative_loss(objective: float, other: float, sense: Literal["maximize", "minimize"]) -> float:
    """By what share of |objective| another one is worse; below 0 where it is better."""
    worse = objective - other if sense == "maximize" else other - objective
    return worse / max(abs(objective), 1e-9)


@dataclass(frozen=True, slots=True)
class SolveResult(Generic[S]):
    """The outcome of one solve; `objective` is recomputed from `solution`, never read from the backend."""

    status: Status
    stop_reason: str  # "finished", "time_limit", "node_limit", "interrupted", "numerical"
    solution: S | None  # present exactly when status is OPTIMAL or FEASIBLE
    objective: float | None
    bound: float | None  # proven bound on the optimum; None when the method gives none
    solve_s: float = field(compare=False)
    solver: str = ""  # name and version of what solved it

    @property
    def gap(self) -> float | None:
        """`relative_gap` of the objective; None if objective or bound is missing."""
        return relative_gap(self.objective, self.bound)


def of_best_first(
    solution: S | None, objective: float | None, reason: str, bound: float, solve_s: float, solver: str
) -> SolveResult[S]:
    """What a search by rising cost answers: its first solution is the cheapest, and none costs less than `bound`.

    Without a solution INFEASIBLE where the search finished, else UNKNOWN.
    """
    if solution is not None:
        return SolveResult(Status.OPTIMAL, reason, solution, objective, objective, solve_s, solver)
    if reason == "finished":
        return SolveResult(Status.INFEASIBLE, reason, None, None, None, solve_s, solver)
    return SolveResult(Status.UNKNOWN, reason, None, None, bound, solve_s, solver)
