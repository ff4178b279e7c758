"""Limits of a solve (time, gap, seed, threads, backend), and the callback that is told its progress."""

from collections.abc import Callable
from dataclasses import dataclass

MAX_SEED = 2**31 - 1  # solvers take seeds of 32 bits, signed


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
