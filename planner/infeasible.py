"""The answers of a solve that are no plan: nothing meets the limits, or the time ran out first."""

from collections.abc import Sequence
from typing import TypedDict


class Conflict(TypedDict):
    """One limit of a smallest set that cannot hold together, and its nearest value that works with the others."""

    limit: str  # as the problem says it, with its unit: `p95 ttft <= 120 ms`
    nearest: str  # such as `ttft 143 ms`; empty when no value of this limit alone would do


class Infeasible(Exception):
    """No plan meets all limits; `conflict` is a smallest set of them that cannot hold together.

    `proved` is False where the search was cut short, so that the answer may be wrong.
    """

    def __init__(self, conflict: Sequence[Conflict], *, proved: bool) -> None:
        super().__init__("no plan meets all limits")
        self.conflict = list(conflict)
        self.proved = proved


class Stopped(Exception):
    """A limit of the solve was reached with neither a plan nor a proof that there is none."""

    def __init__(self, reason: str, *, bound: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason  # as `stop_reason` of a certificate: time_limit, interrupted, ...
        self.bound = bound
