"""Request streams that all placements of a serving problem are simulated on (common random numbers), in a fixed mix.

A rate is that of all workloads together: each has its fraction of it, by the shares of the problem, or by the rates
that it asks for where those must be served.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Ints
from planner.errors import PlannerError
from planner.kinds.serve.simulated.placements import Deployment, FleetBuilder
from planner.kinds.serve.steady.demand import Margins
from planner.kinds.serve.steady.formulate import gpus_at_hand
from planner.kinds.serve.steady.search import Outcome, ServeSetting
from planner.problem.resolve import Workload
from planner.problem.schema import TraceLengths
from planner.problem.slo import Limit, SloSpec
from planner.simulate.goodput.mixture_bound import limits_anything
from planner.simulate.goodput.rate import HIGHEST_PER_S, interval
from planner.simulate.plans.workload import SEEDS, drawn_lengths
from planner.simulate.requests.stream import Requests
from planner.simulate.run.attainment import Draws
from planner.simulate.run.mixture import Mixture

SIDES = ("input_tokens", "output_tokens")
REPLICATIONS = 5  # independent ones, whose goodputs give the interval
FEWEST, MOST = 2_000, 20_000  # requests of a run
FEWEST_TOGETHER = 10_000  # of several workloads, as many as a plan is checked on: bursts of both must meet
FEWEST_EACH, MOST_OF_ALL = 400, 60_000  # of a workload that is rare among others, and of the run then
FLIGHTS = 12.0  # as many requests are in a run as are in the system at a time, so many times
WARM_UP = 1.5  # of those in the system, and at least
LONGER = 10  # times as many requests are named where those of a run are too few
LEAST_WARM_UP = 0.05  # of all: not judged


@dataclass(frozen=True, slots=True)
class LoadStreams:
    """Draws, limits and the engines that are simulated."""

    setting: ServeSetting
    fractions: tuple[float, ...]  # of the rate, by workload
    mixture: Mixture
    builder: FleetBuilder
    replications: tuple[Mixture, ...]  # independent ones of the same workloads
    factor: float  # a rate x factor = the objective, where it is to be the most
    gpus: int  # that may be used

    @classmethod
    def of(cls, setting: ServeSetting, outcome: Outcome) -> "LoadStreams":
        """Runs so long that what is in the system at their ends matters little.

        Raises PlannerError for problems that limit nothing.
        """
        targets = setting.targets
        if not any(limits_anything(workload.spec.slo) for workload in setting.resolved.workloads):
            raise PlannerError(
                "without limits every rate is kept, and no goodput is the highest",
                hint="give a workload limits, such as `slo: {ttft: 1s, tpot: 50ms, attainment: 90%}`",
            )
        maximising = outcome.formulated.problem.maximising
        weights = [target.share if maximising else target.rate_per_s or 0.0 for target in targets]
        fractions = tuple(weight / sum(weights) for weight in weights)
        in_flight = 0.0
        for workload, rate in enumerate(outcome.solution.served_per_s):
            capacities = (candidate.capacities[workload] for candidate in outcome.formulated.candidates)
            in_flight += rate * max(capacity.stay_s for capacity in capacities if capacity is not None)
        count = setting.options.simulated_requests or _count(in_flight, fractions)
        warm_up = min(int(max(WARM_UP * in_flight, LEAST_WARM_UP * count)), count // 3)
        seed = setting.resolved.problem.seed
        mixtures = [drawn(setting, fractions, count, warm_up, seed + 1000 * n) for n in range(REPLICATIONS + 1)]
        builder = FleetBuilder.of(setting, outcome.formulated.candidates, _all_requests(setting, mixtures))
        factor = outcome.formulated.factor / sum(target.share for target in targets)
        return cls(setting, fractions, mixtures[0], builder, tuple(mixtures[1:]), factor, _gpus(setting))

    def require_long_enough(self, incumbent: Sequence[Deployment]) -> None:
        """Refuses runs so short that what steady state prefers keeps the limits though all requests come at once."""
        if math.isfinite(self.asked_per_s):
            return
        fleets = [(self.mixture.of(deployment.workloads), self.builder.fleet(deployment)) for deployment in incumbent]
        if all(mixture.keeps(fleet, HIGHEST_PER_S) for mixture, fleet in fleets):
            raise self._too_short()

    def goodput_interval(self, goods: Sequence[Callable[[float], bool]], found_per_s: float) -> tuple[float, float]:
        """The interval of a goodput by streams that say whether they keep limits; refuses endless ones."""
        if not math.isfinite(found_per_s):
            raise self._too_short()
        low, high = interval(goods, near_per_s=found_per_s, most_per_s=self.asked_per_s)
        if not math.isfinite(high):
            raise self._too_short()
        return low, high

    def _too_short(self) -> PlannerError:
        count = sum(map(len, self.mixture.draws))
        return PlannerError(
            f"{count} requests that come all at once keep their limits, so that no rate does not",
            where=self.setting.resolved.where(("options",)),
            hint=f"simulate more, such as `simulated_requests: {LONGER * count}`, or tighten the limits",
        )

    @property
    def asked_per_s(self) -> float:
        """The rate at which the first workload has all that it asks for; inf where none states a rate."""
        stated = (
            target.rate_per_s / fraction
            for target, fraction in zip(self.setting.targets, self.fractions, strict=True)
            if target.rate_per_s is not None
        )
        return min(stated, default=math.inf)


def _count(in_flight: float, fractions: Sequence[float]) -> int:
    """Requests of a run: a rare workload has enough of them to be judged."""
    count = int(min(max(FLIGHTS * in_flight, FEWEST), MOST))
    if len(fractions) == 1:
        return count
    return max(count, FEWEST_TOGETHER, int(min(FEWEST_EACH / min(fractions), MOST_OF_ALL)))


def _gpus(setting: ServeSetting) -> int:
    """GPUs at hand, or as many of them as the price allows."""
    (pool,) = setting.resolved.pools
    gpus, usd_per_hour = gpus_at_hand(setting.resolved.problem, (pool,)), setting.resolved.problem.limits.usd_per_hour
    if usd_per_hour is None or not pool.usd_per_gpu_hour:
        return gpus
    return min(gpus, int(usd_per_hour / pool.usd_per_gpu_hour * (1.0 + 1e-9)))


def drawn(setting: ServeSetting, fractions: Sequence[float], count: int, warm_up: int, seed: int) -> Mixture:
    """`count` requests of all workloads together; what is drawn of one does not depend on the others."""
    draws, slos = [], []
    for workload, (fraction, target) in enumerate(zip(fractions, setting.targets, strict=True)):
        resolved, own = setting.resolved.workloads[workload], max(round(count * fraction), 1)
        spec, media = resolved.spec, resolved.media
        rng = np.random.default_rng(seed + SEEDS * workload)
        inputs, outputs = _lengths(resolved, own, rng)
        cv, skipped = math.sqrt(target.arrival_cv2), min(int(warm_up * fraction), own - 1)
        renewal = Draws.renewal(inputs, outputs, cv=cv, seed=seed + SEEDS * workload + 1, warm_up=skipped)
        draws.append(Draws(renewal.arrival_s / fraction, inputs, outputs, skipped, target.prefix_hits, media))
        slos.append(divided(spec.slo, target.margins))
    return Mixture(tuple(draws), tuple(slos))


def _lengths(workload: Workload, count: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Prompts and answers [R]; what stands in one row of a trace stays together."""
    rows: dict[str, Ints] = {}
    drawn = []
    for side, facts in zip(SIDES, (workload.input, workload.output), strict=True):
        lengths = getattr(workload.spec, side)
        if isinstance(lengths, TraceLengths):
            if lengths.trace not in rows:
                rows[lengths.trace] = rng.integers(0, len(facts.traced), count)
            drawn.append(np.array(facts.traced, dtype=np.int64)[rows[lengths.trace]])
        else:
            drawn.append(drawn_lengths(workload.spec, side, count, rng))
    return drawn[0], drawn[1]


def _all_requests(setting: ServeSetting, mixtures: Sequence[Mixture]) -> dict[str, Requests]:
    """All requests that are ever simulated, by model."""
    models = [workload.model for workload in setting.resolved.workloads]
    requests = {}
    for model in dict.fromkeys(models):
        draws = [mixture.draws[index] for mixture in mixtures for index, name in enumerate(models) if name == model]
        inputs, outputs = (np.concatenate([getattr(mixture, side) for mixture in draws]) for side in SIDES)
        requests[model] = Requests.open_stream(np.zeros(len(inputs)), inputs, outputs)
    return requests


def divided(slo: SloSpec, margins: Margins) -> SloSpec:
    """Limits divided by the margins that a confidence asks for."""
    stricter: dict[str, dict[str, float]] = {}
    for name, statistic, bound_s in slo.limits():
        margin = margins.ttft if name == "ttft" else margins.tpot
        stricter.setdefault(name, {})[f"{statistic}_s"] = bound_s / margin
    return slo.model_copy(update={name: Limit(**bounds) for name, bounds in stricter.items()})
