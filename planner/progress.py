"""Limits of a solve (time, gap, seed, threads, backend), and the callback that is told its progress."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

MAX_SEED = 2**31 - 1  # solvers take seeds of 32 bits, signed
LEAST_S = 0.1  # of the solver of a step, however little is left


def silent(message: str) -> None:
    """The default listener: nobody listens."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long and how exactly to solve; None leaves a choice to the kind of plan."""

    time_limit_s: float | None = None
    gap: float = 0.0
    seed: int | None = None  # in place of the problem's
    threads: int | None = None
    backend: str | None = None  # of `planner.solvers.backends.solve.BACKENDS`
    explain: bool = True  # whether a smallest set of limits in conflict is named where there is no plan
    tell: Callable[[str], None] = silent  # one line of progress

    def end_s(self, started_s: float) -> float | None:
        """When what began at `started_s` of the monotonic clock is to end; None without a time limit."""
        return None if self.time_limit_s is None else started_s + self.time_limit_s

    def left(self, started_s: float) -> "Limits":
        """The limits with the time that is left to what began at `started_s` of the monotonic clock."""
        end_s = self.end_s(started_s)
        return self if end_s is None else replace(self, time_limit_s=max(end_s - time.monotonic(), LEAST_S))

    def spent(self, started_s: float) -> bool:
        """Whether what began at `started_s` of the monotonic clock has no time left."""
        end_s = self.end_s(started_s)
        return end_s is not None and time.monotonic() >= end_s
