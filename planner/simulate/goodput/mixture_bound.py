"""Upper bound on the goodput of a mix of workloads, whatever the scheduling.

(B5) Each workload is served no better than if it had the fleet to itself: the bounds of `rate_bound` on its own draws.
(B6) The cheapest requests of all workloads that must be on time, together, cost no more than the engines can do from
     the first arrival to the last moment at which one of them can still be on time: (B2) with prices that hold for
     every step, whatever workloads its sequences are of. Their time per token is taken for the slackest limit on it,
     which a request that keeps a stricter one keeps too.

Requests are those judged; workloads without a limit on when they end are left out of (B6). A rate is that of all
workloads of the mixture that the draws are taken from.
"""

import math
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats
from planner.problem.slo import SloSpec
from planner.simulate.fleet.instances import Fleet
from planner.simulate.goodput.rate_bound import (
    OnTimeQuota,
    RateBound,
    kinds,
    latest_s,
    most_context,
    rate_of_work,
    stages_of,
)
from planner.simulate.run.attainment import Draws, Requirement, required
from planner.simulate.run.mixture import Mixture


@dataclass(frozen=True, slots=True)
class SharedWork:
    """(B6): the judged requests of all workloads that have a last moment, by arrival."""

    prices: RateBound
    wanted: Requirement  # the slackest time per token
    late_R: Floats
    shares: tuple[OnTimeQuota, ...]
    span_s: float  # at a rate of one

    @classmethod
    def of(cls, mixture: Mixture, requirements: tuple[tuple[Requirement, ...], ...]) -> "SharedWork | None":
        """None where fewer than two workloads have a last moment."""
        chosen = [(draws, _with_end(wanted)) for draws, wanted in zip(mixture.draws, requirements, strict=True)]
        ended = [(draws, wanted) for draws, wanted in chosen if wanted is not None]
        if len(ended) < 2:
            return None
        judged = [slice(draws.warm_up, None) for draws, _ in ended]
        sizes = [len(draws) - draws.warm_up for draws, _ in ended]
        number = np.repeat(np.arange(len(ended)), sizes)
        arrival, inputs, outputs = (
            np.concatenate([getattr(draws, name)[part] for (draws, _), part in zip(ended, judged, strict=True)])
            for name in ("arrival_s", "input_tokens", "output_tokens")
        )
        late = [
            latest_s(wanted, draws.output_tokens[part].astype(float))
            for (draws, wanted), part in zip(ended, judged, strict=True)
        ]
        shares = tuple(
            OnTimeQuota(number == workload, math.ceil(wanted.share * sizes[workload] - 1e-9))
            for workload, (_, wanted) in enumerate(ended)
        )
        slackest = Requirement(1.0, tpot_s=max(wanted.tpot_s for _, wanted in ended))
        prices = RateBound(Draws(arrival, inputs, outputs), ())
        return cls(prices, slackest, np.concatenate(late), shares, float(arrival.max() - arrival.min()))

    def most_rate(self, fleet: Fleet) -> float:
        """(B6) for prefill, for decoding, and for both where engines do both."""
        fleet, limit = self.prices.stepping_alone(fleet), most_context(fleet)
        first = [instance for instance in fleet.instances if instance.role != "decode"]
        last = [instance for instance in fleet.instances if instance.role != "prefill"]
        sides = [("prefill_s", first), ("decode_s", last)]
        if any(instance.role == "colocated" for instance in fleet.instances):
            sides.append(("joint_s", list(fleet.instances)))
        rates = []
        for name, engines in sides:
            works = [getattr(self.prices.work(engine, self.wanted, limit), name) for engine in kinds(engines)]
            work_R = np.minimum.reduce(works) / stages_of(engines)
            rates.append(rate_of_work(work_R, self.late_R, self.shares, self.span_s))
        return min(rates)


class MixtureRateBound:
    """Bounds of fleets that serve the same mixture; engines of one kind are priced once."""

    def __init__(self, mixture: Mixture) -> None:
        requirements = tuple(required(slo) if limits_anything(slo) else () for slo in mixture.slos)
        self._alone = [RateBound(draws, wanted) for draws, wanted in zip(mixture.draws, requirements, strict=True)]
        self._together = SharedWork.of(mixture, requirements)

    def most_rate(self, fleet: Fleet) -> float:
        """The rate beyond which no run of `fleet` keeps all limits of all workloads; inf where nothing limits it.

        Raises PlannerError as that of one workload does.
        """
        rates = [bound.most_rate(fleet) for bound in self._alone]
        if self._together is not None:
            rates.append(self._together.most_rate(fleet))
        return min(rates)


def limits_anything(slo: SloSpec) -> bool:
    """Whether there is a limit at all."""
    return slo.attainment is not None or any(slo.limits())


def _with_end(requirements: tuple[Requirement, ...]) -> Requirement | None:
    """The requirement of the largest share that says when a request must have ended; of equal ones the strictest."""
    ended = [wanted for wanted in requirements if math.isfinite(min(wanted.latency_s, wanted.ttft_s + wanted.tpot_s))]
    return max(ended, key=lambda r: (r.share, -min(r.latency_s, r.ttft_s + r.tpot_s)), default=None)
