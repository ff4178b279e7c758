"""The time that a solve may take, shared by proposals and the plan that is verified."""

import time
from dataclasses import dataclass, field, replace

from planner.kinds.serve.verified.verifiable import Unverified
from planner.progress import LEAST_S, Limits

OF_TIME_LIMIT = 0.5  # that proposals may take; the rest is for the one that is verified


class OutOfTime(Unverified):
    """The time limit, or the share of it for what is now done, has passed."""


@dataclass(slots=True)
class Budget:
    """The time of one search, an equal part of what the limits of a solve leave for it and those still to come."""

    limits: Limits  # of the solve
    started_s: float  # of the solve
    parts: int = 1  # searches that share what is left, this one included
    share: float = OF_TIME_LIMIT  # of the time of this search that may be spent as things stand
    cut: bool = False  # whether something was not done to its end
    _begun_s: float = field(init=False)
    _most_s: float | None = field(init=False)  # from then on; None without a time limit

    def __post_init__(self) -> None:
        self._begun_s, limit_s = time.monotonic(), self.limits.time_limit_s
        left_s = None if limit_s is None else limit_s - (self._begun_s - self.started_s)
        self._most_s = None if left_s is None else max(left_s, 0.0) / self.parts

    @property
    def _left_s(self) -> float | None:
        """None without a time limit."""
        return None if self._most_s is None else self.share * self._most_s - (time.monotonic() - self._begun_s)

    @property
    def spent(self) -> bool:
        """Whether what is now done has had its share of the time limit."""
        return self._left_s is not None and self._left_s <= 0.0

    @property
    def left(self) -> Limits:
        """The limits with the time that is left of the share."""
        return self.limits if self._left_s is None else replace(self.limits, time_limit_s=max(self._left_s, LEAST_S))

    def allow(self, share: float) -> None:
        """What was done so far is over; from here on, so much of the time may be spent."""
        self.cut, self.share = self.cut or self.spent, share

    def require_time(self) -> None:
        """Raises OutOfTime where nothing more may be done."""
        if self.spent:
            self.cut = True
            raise OutOfTime(f"the time limit of {self.limits.time_limit_s:g} s came before a plan kept its limits")
