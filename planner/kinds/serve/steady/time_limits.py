"""Limits on times (SLO) in numbers, and the waits before prefill that count against them."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.arrays import Floats, Indices
from planner.kinds.serve.steady.steps.pipelines import Bubbles
from planner.problem.slo import Limit
from planner.problem.statistics import quantile_of
from planner.solvers.stochastic.capped_lognormal import unit_quantile
from planner.solvers.stochastic.routed_queues import Routing, routed_wait_quantile_s, routed_wait_s

DEFAULT_STATISTIC = "p95"
ATTAINMENT = "attainment"
MOST_ATTAINMENT = 0.9999  # no queue keeps every wait; this many of a workload stand for all
UTILISATION: Floats = np.arange(16_384) / 16_384.0  # at which a wait is known
LEAST_SERVICE_S = 1e-12


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """A limit on one statistic of a time; `quantile` is None for the mean."""

    statistic: str
    quantile: float | None
    limit_s: float

    def wait_s(
        self,
        busy: Floats,
        service_s: Floats,
        queue: "Queue",
        bubbles: Bubbles | None = None,
        varied_s: Floats | None = None,
    ) -> Floats:
        """Waiting at this statistic [N] before servers that are `busy`, and of bubbles.

        `varied_s` is the time of a mean prompt that grows with its length: a quantile of the whole time is as far above
        its mean as those of the wait and of lognormal lengths are together, the root of their squares.
        """
        wait_s = queue.wait_s(busy, service_s, self.quantile)
        if varied_s is not None and self.quantile is not None:
            mean_s = queue.wait_s(busy, service_s, None)
            wait_s = _with_lengths(mean_s, wait_s, self._longer_s(queue, varied_s))
        return wait_s if bubbles is None else wait_s + bubbles.wait_s(busy, self.quantile)

    def _longer_s(self, queue: "Queue", varied_s: Floats) -> Floats:
        """What a prompt as long as this quantile of lengths takes beyond a mean one [N]."""
        assert self.quantile is not None
        return varied_s * (unit_quantile(self.quantile, queue.service_cv2) - 1.0)

    def utilisation(
        self,
        wait_s: Floats,
        service_s: Floats,
        queue: "Queue",
        bubbles: Bubbles | None = None,
        varied_s: Floats | None = None,
    ) -> Floats:
        """The largest utilisation of a grid at which this statistic of `wait_s` is not exceeded [N]."""
        services = wait_s / np.maximum(service_s, LEAST_SERVICE_S)
        last = np.searchsorted(_waits_by_utilisation(queue, self.quantile), services, side="right") - 1
        changed = np.zeros(len(wait_s), dtype=np.bool_)
        if bubbles is not None:
            changed |= bubbles.most_s > 0.0
        if varied_s is not None and self.quantile is not None:
            changed |= varied_s > 0.0
        rows = np.flatnonzero(changed)
        if len(rows):
            last[rows] = self._last(wait_s, service_s, queue, bubbles, varied_s, rows)
        return UTILISATION[np.maximum(last, 0)]

    def _last(
        self,
        wait_s: Floats,
        service_s: Floats,
        queue: "Queue",
        bubbles: Bubbles | None,
        varied_s: Floats | None,
        rows: Indices,
    ) -> Indices:
        """The last place of the grid at which `wait_s` is not exceeded, -1 where it is at all, by halving [rows]."""
        own_s, room_s, bubble = service_s[rows], wait_s[rows], None if bubbles is None else bubbles.take(rows)
        means, waits = (_waits_by_utilisation(queue, quantile) for quantile in (None, self.quantile))
        longer_s = None if varied_s is None or self.quantile is None else self._longer_s(queue, varied_s[rows])
        low, high = np.full(len(rows), -1), np.full(len(rows), len(UTILISATION) - 1)
        while np.any(low < high):
            middle = (low + high + 1) // 2
            taken_s = own_s * waits[middle]
            if longer_s is not None:
                taken_s = _with_lengths(own_s * means[middle], taken_s, longer_s)
            if bubble is not None:
                taken_s = taken_s + bubble.wait_s(UTILISATION[middle], self.quantile)
            within = taken_s <= room_s
            low, high = np.where(within, middle, low), np.where(within, high, middle - 1)
        return low


def _with_lengths(mean_s: Floats, wait_s: Floats, longer_s: Floats) -> Floats:
    """A mean wait with what a quantile of it and of a prompt's own time add, independent of each other [N].

    Infinite where the mean is: before servers that are asked for more than they do.
    """
    waits_s = np.subtract(wait_s, mean_s, out=np.zeros_like(wait_s), where=np.isfinite(mean_s))
    squares = waits_s * np.abs(waits_s) + longer_s * np.abs(longer_s)
    both_s: Floats = mean_s + np.sign(squares) * np.sqrt(np.abs(squares))
    return both_s


@dataclass(frozen=True, slots=True)
class Queue:
    """What a wait before prefill depends on, but for utilisation and service: spreads, and who shares the arrivals."""

    arrival_cv2: float
    service_cv2: float
    servers: float = 1.0  # equal ones to which a router sends the arrivals
    routing: Routing = Routing.POWER_OF_TWO

    def wait_s(self, busy: Floats, service_s: Floats, quantile: float | None) -> Floats:
        """The wait at a quantile, or in the mean."""
        cv2 = {"cv2_arrival": self.arrival_cv2, "cv2_service": self.service_cv2}
        if quantile is None:
            return routed_wait_s(self.routing, busy, self.servers, service_s, **cv2)
        return routed_wait_quantile_s(self.routing, busy, self.servers, service_s, quantile, **cv2)


@functools.lru_cache(maxsize=1024)
def _waits_by_utilisation(queue: Queue, quantile: float | None) -> Floats:
    """The wait in services at every `UTILISATION`; it grows with utilisation."""
    return np.maximum.accumulate(queue.wait_s(UTILISATION, np.ones(len(UTILISATION)), quantile))


MEAN = TimeLimit("mean", None, math.inf)
UNLIMITED = TimeLimit(DEFAULT_STATISTIC, quantile_of(DEFAULT_STATISTIC), math.inf)


def strictest_s(limits: Sequence[TimeLimit]) -> float:
    """What requests are held to where a share must keep all limits: the least of those on quantiles; inf for none."""
    return min((limit.limit_s for limit in limits if limit.quantile is not None), default=math.inf)


def attaining(limits: tuple[TimeLimit, ...], share: float) -> tuple[TimeLimit, ...]:
    """Those of an attainment held to another share."""
    return tuple(replace(limit, quantile=share) if limit.statistic == ATTAINMENT else limit for limit in limits)


def time_limits(
    limit: Limit | None, attainment: float | None, margin: float, together: bool = False
) -> tuple[TimeLimit, ...]:
    """Limits by statistic, strictest quantile first; an attainment holds every quantile's limit to that share too.

    It does so below that share, and where requests must keep limits on several times `together`.
    """
    if limit is None:
        return ()
    limits = [TimeLimit(name, quantile_of(name), value / margin) for name, value in limit.statistics().items()]
    if attainment is not None:
        share = min(attainment, MOST_ATTAINMENT)
        limits += [
            TimeLimit(ATTAINMENT, share, item.limit_s)
            for item in limits
            if item.quantile is not None and (together or item.quantile < share)
        ]
    return tuple(sorted(limits, key=lambda item: -(item.quantile or 0.0)))
