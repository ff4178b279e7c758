"""What every solver returns: what was proven, why it stopped, the solution, and a bound on the optimum."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

S = TypeVar("S")


class Status(StrEnum):
    """What was proven; a time limit is not a status."""

    OPTIMAL = "optimal"  # solution present, gap within tolerance, proven
    FEASIBLE = "feasible"  # solution present, not proven optimal
    INFEASIBLE = "infeasible"  # proven that no solution exists
    UNKNOWN = "unknown"  # stopped with neither a solution nor a proof


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
        """|objective - bound| / max(|objective|, 1e-9); None if either is missing."""
        if self.objective is None or self.bound is None:
            return None
        return abs(self.objective - self.bound) / max(abs(self.objective), 1e-9)
