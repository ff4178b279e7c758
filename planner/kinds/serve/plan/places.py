"""Waiting for a place in decode: what steady-state answers leave out, and where it breaks a limit by itself.

A decoding attention rank has c places. Requests that prefill hands over go round robin to n equal ranks and keep a
place for S, the time of an answer at the full batch, so that each rank is a queue G/G/c of utilisation rho with gaps
between arrivals n times as even (ca2 / n). Allen and Cunneen's mean and the exponential tail of
`solvers/stochastic/queueing.py`; nothing is fitted. With hundreds of places and the room that
`options.max_decode_occupancy` leaves that wait is short; with a few it is many answers long.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.kinds.serve.options import ServeOptions
from planner.kinds.serve.steady.demand import Target
from planner.kinds.serve.steady.roles_in_use import RoleInUse
from planner.kinds.serve.steady.time_limits import ATTAINMENT
from planner.solvers.stochastic.queueing import mean_wait_s, wait_quantile_s


@dataclass(frozen=True, slots=True)
class Places:
    """The queue for a place before each attention rank of a decoding role."""

    number: int  # on a rank
    ranks: int
    taken: float  # share of the places, on average
    stay_s: float
    arrival_cv2: float  # at one rank
    service_cv2: float

    @classmethod
    def of(cls, item: RoleInUse, target: Target, options: ServeOptions) -> "Places":
        """Those of a role for a target that it serves."""
        filled, number = options.filled(target.clients), item.candidate.max_batch
        rate_per_s = item.candidate.capacity(target).rate_per_s
        ranks = item.count * item.candidate.shape.dp
        stay_s = filled * number * item.candidate.shape.dp / rate_per_s
        return cls(number, ranks, filled * item.busy, stay_s, target.arrival_cv2 / ranks, target.answers.cv2)

    def wait_s(self, quantile: float | None) -> float:
        """The mean wait for a place, or the one that this share of requests does not exceed."""
        cv2 = {"cv2_arrival": self.arrival_cv2, "cv2_service": self.service_cv2}
        if quantile is None:
            return float(mean_wait_s(self.taken, self.number, self.stay_s, **cv2))
        return float(wait_quantile_s(self.taken, self.number, self.stay_s, quantile, **cv2))


def place_assumptions(used: Sequence[RoleInUse], targets: Sequence[Target], options: ServeOptions) -> Iterator[str]:
    """One line a decoding role whose wait for a place alone is beyond a limit on the time to first token."""
    for item in used:
        if item.candidate.function != "decode":
            continue
        for target in targets:
            if target.clients is not None or item.load_per_s[target.index] <= 0.0:
                continue
            places = Places.of(item, target, options)
            for limit in target.ttft_limits:
                wait_s = places.wait_s(limit.quantile) if limit.statistic != ATTAINMENT else 0.0
                if math.isfinite(limit.limit_s) and wait_s > limit.limit_s:
                    yield (
                        f"requests of `{target.name}` wait for a place in {item.role} of {places.number} a rank, "
                        f"{places.taken:.0%} taken: {wait_s:.3g} s at {limit.statistic}, which the time to first token "
                        "leaves out and its limit does not allow; `--level verified` counts it, and a lower "
                        "`options.max_decode_occupancy` leaves more room"
                    )
                    break
