"""The time that a solve may take, shared by proposals and the plan that is verified."""

import time
from dataclasses import dataclass, replace

from planner.kinds.serve.verified.verifiable import Unverified
from planner.progress import Limits

OF_TIME_LIMIT = 0.5  # that proposals may take; the rest is for the one that is verified
LEAST_S = 0.1  # of the solver of a mix, however little is left


class OutOfTime(Unverified):
    """The time limit, or the share of it for what is now done, has passed."""


@dataclass(slots=True)
class Budget:
    """The limits of a solve, with the time at which it began, and the share that may be spent as things stand."""

    limits: Limits
    started_s: float
    share: float = OF_TIME_LIMIT

    @property
    def _left_s(self) -> float | None:
        """None without a time limit."""
        most_s = self.limits.time_limit_s
        return None if most_s is None else self.share * most_s - (time.monotonic() - self.started_s)

    @property
    def spent(self) -> bool:
        """Whether what is now done has had its share of the time limit."""
        return self._left_s is not None and self._left_s < 0.0

    @property
    def left(self) -> Limits:
        """The limits with the time that is left of the share."""
        return self.limits if self._left_s is None else replace(self.limits, time_limit_s=max(self._left_s, LEAST_S))

    def allow(self, share: float) -> None:
        """From here on, so much of the time limit may be spent."""
        self.share = share

    def require_time(self) -> None:
        """Raises OutOfTime where nothing more may be done."""
        if self.spent:
            raise OutOfTime(f"the time limit of {self.limits.time_limit_s:g} s came before a plan kept its limits")
