"""Raw outcome of a backend before our own checks, and the limits that it runs under."""

from dataclasses import dataclass

from planner.solvers.result import Status


@dataclass(frozen=True, slots=True)
class BackendLimits:
    """When a backend must stop; `node_limit` is the deterministic one (conflicts in CP-SAT, nodes elsewhere)."""

    time_limit_s: float | None = None
    node_limit: int | None = None
    gap: float = 0.0
    seed: int = 0
    threads: int = 1


@dataclass(frozen=True, slots=True)
class BackendOutcome:
    """Raw claims of a backend: unrounded values by column (`coarse` if in few digits), and the bound it proved."""

    status: Status
    stop_reason: str
    values: tuple[float, ...] | None
    bound: float | None
    solver: str
    coarse: bool = False
