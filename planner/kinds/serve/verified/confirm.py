"""Verifies a plan on streams that nothing was chosen on: one load, and others only at stricter confidence.

The load of a goodput plan is chosen on the streams of the search, longer ones, where the 70 % interval of every limit
lies within it. It is verified on fresh streams. Where a limit is not kept there, a smaller load is tried on other fresh
streams. Each further try is a chance more to claim by luck what is not so: the k-th of them (k = 1, 2, ...) must keep
every limit with its whole interval, at confidence 1 - 0.05 / 2^k, so that all of them together err with less than the
5 % of one (Bonferroni, with errors spent as a geometric series).
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from planner.kinds.serve.options import ServeDecision
from planner.kinds.serve.verified.capacity import keeps
from planner.kinds.serve.verified.trials import SEARCH_SEED, Trials, Variants
from planner.simulate.judge.judging import FEWEST, PILOT_SEED, judge
from planner.simulate.judge.limits import STREAMS, JudgedLimit, Judgement, Verdict
from planner.simulate.run.result import SimulationResult

VERIFIED_SEED = 300_000
SEEDS_OF_A_TRY = 10_000
ERROR = 0.05  # of an interval
CHOOSING_ERROR = 0.3  # of intervals by which a load is chosen: wider ones cost load, narrower ones tries
CHOSEN = (
    1.0,
    0.985,
    0.97,
    0.95,
    0.92,
    0.88,
    0.8,
)  # of the load whose values are within limits on streams of the search
FURTHER = (0.97, 0.93, 0.87, 0.78, 0.65, 0.5)  # of the load chosen, tried where fresh streams do not keep it


@dataclass(frozen=True, slots=True)
class Confirmed:
    """A load that fresh streams confirm, with what they say of every variant of the plan."""

    scale: float
    seed: int
    tries: int
    confidence: float  # of the intervals by which the limits are kept
    judgements: tuple[Judgement, ...]  # all up first
    lost: tuple[dict[str, int], ...]  # instances by role that are down, of each


def confirm(trials: Trials, variants: Variants, scale: float, *, scalable: bool) -> Confirmed | None:
    """The load at which fresh streams keep every limit; None where none of those tried is, or the only one is not."""
    chosen = _chosen(trials, variants, scale) if scalable else scale
    for number, step in enumerate((1.0, *FURTHER) if scalable else (1.0,)):
        seed, error = VERIFIED_SEED + SEEDS_OF_A_TRY * number, ERROR / 2.0**number
        judgements = []
        for decision in variants.worst_first():
            judgements.append(_judged(trials, variants, decision, chosen * step, seed))
            if not (kept_surely(judgements[-1], error) or (not number and _kept(judgements[-1]))):
                break
        else:
            whole = (judgements[-1], *judgements[:-1])
            return Confirmed(chosen * step, seed, number + 1, 1.0 - error, whole, variants.lost)
    return None


def _judged(trials: Trials, variants: Variants, decision: ServeDecision, scale: float, seed: int) -> Judgement:
    """A variant on streams of a seed that are as long as pilots of other seeds ask for."""

    def simulated(count: int, *, pilot: bool) -> Sequence[SimulationResult]:
        own = seed + PILOT_SEED * pilot
        return trials.shared.simulate(variants.plan, decision, variants.rate_per_s, scale, count, own, STREAMS)

    return judge(simulated, trials.shared.slos, fewest_requests=max(trials.fewest_requests, FEWEST))


def _chosen(trials: Trials, variants: Variants, scale: float) -> float:
    """The largest load at which longer streams of the search keep every limit, each with its interval, by halving."""

    def within(step: float) -> bool:
        judged = (_judged(trials, variants, each, scale * step, SEARCH_SEED) for each in variants.worst_first())
        return all(kept_surely(judgement, CHOOSING_ERROR) for judgement in judged)

    return scale * CHOSEN[bisect_left(CHOSEN, True, hi=len(CHOSEN) - 1, key=within)]


def _kept(judgement: Judgement) -> bool:
    return judgement.verdict is not Verdict.BROKEN and keeps(judgement)


def kept_surely(judgement: Judgement, error: float) -> bool:
    """Whether the interval of every limit that errs so often lies within it."""
    return keeps(judgement) and all(room >= 0.0 for limit in judgement.limits for room in _room(limit, error))


def _room(limit: JudgedLimit, error: float) -> Iterator[float]:
    """From the end of the interval to the limit; intervals of other confidence are as much wider as a Gaussian's."""
    estimate = limit.estimate
    wider = NormalDist().inv_cdf(1.0 - error / 2.0) / NormalDist().inv_cdf(1.0 - ERROR / 2.0)
    if limit.time == "attainment":
        yield estimate.value - (estimate.value - estimate.low) * wider - limit.limit
    else:
        yield limit.limit - estimate.value - (estimate.high - estimate.value) * wider
