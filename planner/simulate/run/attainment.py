"""SLO attainment: limits of requests, whether a run kept them, and common random draws. R requests."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats, Ints
from planner.errors import PlannerError
from planner.problem.encoded import Media
from planner.problem.slo import SloSpec
from planner.problem.statistics import quantile_of
from planner.simulate.requests.arrivals import arrivals
from planner.simulate.requests.stream import Requests
from planner.simulate.run.result import SimulationResult
from planner.simulate.run.summary import statistic

MEAN_TIMES = 10.0  # by Markov's inequality no more than one in so many takes longer than so many times the mean


@dataclass(frozen=True, slots=True)
class Requirement:
    """So large a share of the requests keeps all of these limits at once."""

    share: float
    ttft_s: float = math.inf
    tpot_s: float = math.inf
    latency_s: float = math.inf


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """Requests that come once a second on average; a rate takes the same draws so many times as fast.

    The first `warm_up` are simulated and not judged.
    """

    arrival_s: Floats  # [R]
    input_tokens: Ints  # [R]
    output_tokens: Ints  # [R]
    warm_up: int = 0
    hits: float = 0.0  # share of each prompt that prefix caches hold
    media: Media | None = None  # that they bring

    def __post_init__(self) -> None:
        if not 0 <= self.warm_up < len(self.arrival_s):
            raise PlannerError(
                f"{self.warm_up} of {len(self.arrival_s)} requests are a warm-up, so that none is judged",
                hint="draw more requests",
            )

    def __len__(self) -> int:
        return len(self.arrival_s)

    @classmethod
    def renewal(
        cls, input_tokens: Ints, output_tokens: Ints, *, cv: float = 1.0, seed: int = 0, warm_up: int = 0
    ) -> "Draws":
        """Gamma gaps of that CV between requests of these lengths; evenly spaced for a CV of 0."""
        count = len(input_tokens)
        times = arrivals("gamma", 1.0, count, cv=cv, seed=seed) if cv > 0.0 else np.arange(1.0, count + 1.0)
        return cls(times, input_tokens, output_tokens, warm_up)

    def requests(self, rate_per_s: float) -> Requests:
        """The draws at a rate."""
        stream = Requests.open_stream(self.arrival_s / rate_per_s, self.input_tokens, self.output_tokens)
        return stream.with_hits(self.hits).with_media(self.media)


def required(slo: SloSpec) -> tuple[Requirement, ...]:
    """What limits ask for, in shares of requests: every one of them is necessary.

    A limit on a mean asks for little: all but a tenth stay within ten times it. Shares of limits on different times are
    also taken together: what 95 % keep and what 95 % keep, at least 90 % keep both. Raises PlannerError for no limit.
    """
    requirements = [*_single(slo)]
    if slo.attainment is not None:
        requirements.append(Requirement(slo.attainment, **_strictest(slo)))
    missed = sum(1.0 - requirement.share for requirement in requirements)
    if len(requirements) > 1 and missed < 1.0:
        limits = {
            name: min(getattr(requirement, name) for requirement in requirements)
            for name in ("ttft_s", "tpot_s", "latency_s")
        }
        requirements.append(Requirement(1.0 - missed, **limits))
    if not requirements and slo.itl is not None:
        raise PlannerError(
            "a limit on gaps between tokens alone bounds no rate, so that no goodput is known to be the highest",
            hint="limit a time of requests too, such as `slo: {itl: 80ms, tpot: 50ms}`",
        )
    if not requirements:
        raise PlannerError(
            "without limits every rate is kept, and no goodput is the highest",
            hint="give the workload limits, such as `slo: {ttft: 1s, tpot: 50ms, attainment: 90%}`",
        )
    return tuple(dict.fromkeys(requirements))


def _single(slo: SloSpec) -> Iterator[Requirement]:
    for name, of, bound_s in slo.limits():
        if name == "itl":
            continue  # a share of gaps, which may be those of few requests, says nothing of a share of requests
        share, factor = quantile_of(of), 1.0
        if share is None:
            share, factor = 1.0 - 1.0 / MEAN_TIMES, MEAN_TIMES
        yield Requirement(share, **{f"{name}_s": bound_s * factor})


def _strictest(slo: SloSpec) -> dict[str, float]:
    """The limits on percentiles that attainment is about, all at once."""
    return {f"{name}_s": bound_s for name, bound_s in slo.percentile_limits().items()}


def attainment(result: SimulationResult, slo: SloSpec, warm_up: int = 0) -> float:
    """The share of the judged requests that keep the strictest limit on each time at once."""
    return _share(result, Requirement(1.0, **_strictest(slo)), warm_up)


def kept(result: SimulationResult, slo: SloSpec, warm_up: int = 0) -> bool:
    """Whether the judged requests of a run keep all limits: shares, means, and the attainment.

    Requests that an engine refuses keep none.
    """
    if not bool((result.complete | result.rejected).all()):
        return False
    for name, of, bound_s in slo.limits():
        share = quantile_of(of)
        if name == "itl":
            gaps = result.gaps.within(warm_up / len(result.requests), 1.0)
            if gaps.count and not gaps.statistic_s(share) <= bound_s:
                return False
        elif share is None:
            if statistic(result.times_s[name][warm_up:], "mean") > bound_s:
                return False
        elif _share(result, Requirement(1.0, **{f"{name}_s": bound_s}), warm_up) < share:
            return False
    return slo.attainment is None or attainment(result, slo, warm_up) >= slo.attainment


def _share(result: SimulationResult, wanted: Requirement, warm_up: int) -> float:
    keeps = result.complete.copy()
    for bound, values in (
        (wanted.ttft_s, result.ttft_s),
        (wanted.tpot_s, result.tpot_s),
        (wanted.latency_s, result.e2e_s),
    ):
        if bound < math.inf:
            keeps &= np.isnan(values) | (values <= bound)
    return float(keeps[warm_up:].mean())
