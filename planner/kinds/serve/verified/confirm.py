"""Verifies a plan on streams that nothing was chosen on: one load, and others only at stricter confidence.

The load of a goodput plan is chosen on the streams of the search, longer ones, where the intervals of all limits are
about to reach them: by the secant of how far they stay from their limits over loads, until it asks for a step no longer
than one that a try may take, and by bisection where one load has much room and the next has none. It is verified on
fresh streams. Where a limit is not kept there, a smaller load is tried on other fresh streams, no shorter ones. Each
further try is a chance more to
claim by luck what is not so: the k-th of them (k = 1, 2, ...) must keep every limit with its whole interval, at
confidence 1 - 0.05 / 2^k, so that all of them together err with less than the 5 % of one (Bonferroni, with errors spent
as a geometric series). A limit that streams leave too close to call, or are too short to tell, is not kept.

A load that falls below one at which another plan would be better is given up: it can be gone on with later, by the
tries that are left.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TypeAlias

from planner.kinds.serve.options import ServeDecision
from planner.kinds.serve.verified.capacity import keeps
from planner.kinds.serve.verified.trials import SEARCH_SEED, Trials, Variants
from planner.simulate.judge.judging import MOST_REQUESTS, PILOT_SEED, judge
from planner.simulate.judge.limits import STREAMS, JudgedLimit, Judgement
from planner.simulate.run.result import SimulationResult

VERIFIED_SEED = 300_000
SEEDS_OF_A_TRY = 10_000
SURE_REQUESTS = 200_000  # of all streams together, as far as events go: wide intervals cost load
LONG_REQUESTS = MOST_REQUESTS  # where those do not tell
ENOUGH = 1.1  # times the fewest requests: streams beyond are as long as pilots ask for, or as work may be
ERROR = 0.05  # of an interval
CHOOSING_ERROR = 0.02  # of intervals by which a load is chosen: wider ones cost load, narrower ones tries
MOST_CHOICES = 5  # loads simulated to choose one
NEAR = 0.02  # logarithm of a load over the next: so short a step is not simulated before it is tried
CLOSE = 0.04  # logarithm of two loads that are near enough to choose one between them
MOST_TRIES = 6
BROKEN_CHOICE = 2.0  # times half an interval by which a pilot breaks a limit that tells as much as is to be known
BROKEN_TRY = 8.0
STEEPNESS = 2.5  # of how far times stay from limits over the logarithm of a load, where nothing is known
STEEP = (1.5, 15.0)  # least and most of it
UP, DOWN = 0.02, 0.08  # most that one step changes the logarithm of a load
FURTHER = 0.004  # that a try stays below the load at which intervals reach limits, and as much more each time
UNTOLD = 0.05  # by which it does where nothing tells how far

Nearest: TypeAlias = dict[int, Judgement]
"""What was last simulated of each variant, the worst first: at a load near the next, and for tries on other streams."""


@dataclass(frozen=True, slots=True)
class Confirmed:
    """A load that fresh streams confirm, with what they say of every variant of the plan."""

    scale: float
    seed: int
    tries: int
    confidence: float  # of the intervals by which the limits are kept
    judgements: tuple[Judgement, ...]  # all up first
    lost: tuple[dict[str, int], ...]  # instances by role that are down, of each


@dataclass(frozen=True, slots=True)
class Unconfirmed:
    """No load that fresh streams confirm."""

    tries: int  # that were made
    scale: float = 0.0  # the load that would be tried next, of one given up below the least; 0 where all tries failed


def confirm(
    trials: Trials,
    variants: Variants,
    scale: float,
    *,
    scalable: bool,
    most: float = math.inf,
    least: float = 0.0,
    tries: int = 0,
) -> Confirmed | Unconfirmed:
    """The load, `most` at most, at which fresh streams keep every limit; `tries` were made before.

    Unconfirmed where no try is left, or the next load is below `least`.
    """
    chosen = _Chosen(0.0, STEEPNESS, SURE_REQUESTS)
    nearest: Nearest = {}
    lowest = math.log(least / scale) if least > 0.0 else -math.inf
    if scalable:
        chosen = _chosen(trials, variants, scale, (lowest, math.log(most / scale)), nearest)
    step, fewest = chosen.step, chosen.fewest
    for number in range(tries, MOST_TRIES if scalable else 1):
        if step < lowest:
            return Unconfirmed(number, scale * math.exp(step))
        seed, error = VERIFIED_SEED + SEEDS_OF_A_TRY * number, ERROR / 2.0**number
        judgements: list[Judgement] = []
        room = math.inf
        for variant, decision in enumerate(variants.worst_first()):
            near = nearest.get(variant)
            judgements.append(_judged(trials, variants, decision, scale * math.exp(step), seed, fewest, near))
            nearest[variant] = judgements[-1]
            room = min(room, room_left(judgements[-1], error))
            if not kept_surely(judgements[-1], error):
                break
        else:
            whole = (judgements[-1], *judgements[:-1])
            return Confirmed(scale * math.exp(step), seed, number + 1, 1.0 - error, whole, variants.lost)
        fewest = max(fewest, *map(_requests, judgements))
        down = -room / chosen.steepness if -math.inf < room < 0.0 else UNTOLD
        before = chosen.low if number == tries and chosen.low < step else -math.inf  # it may have been luck there too
        step = max(step - min(down, DOWN) - FURTHER * (number + 1), before)
    return Unconfirmed(number + 1)


def _judged(
    trials: Trials,
    variants: Variants,
    decision: ServeDecision,
    scale: float,
    seed: int,
    fewest: int = SURE_REQUESTS,
    near: Judgement | None = None,
) -> Judgement:
    """A variant on streams of a seed, of `fewest` requests or more, as many as runs `near` its load ask for.

    Where these do not tell, pilots of another seed do, as long at first as trials needed.
    """

    def simulated(count: int, *, pilot: bool) -> Sequence[SimulationResult]:
        own = seed + PILOT_SEED * pilot
        return trials.shared.simulate(variants.plan, decision, variants.rate_per_s, scale, count, own, STREAMS)

    fewest = max(trials.fewest_requests, fewest)
    halves = BROKEN_CHOICE if seed == SEARCH_SEED else BROKEN_TRY
    slos, first = trials.shared.slos(decision), trials.pilot_requests
    return judge(simulated, slos, fewest_requests=fewest, until_broken=halves, near=near, pilot_requests=first)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A load to be tried, and what its choice tells the tries."""

    step: float  # logarithm of the load, as a multiple of that whose values are within limits on short streams
    steepness: float
    fewest: int  # requests of the streams of a try
    low: float = -math.inf  # the largest step with room on the streams of the search


def _chosen(trials: Trials, variants: Variants, scale: float, within: tuple[float, float], nearest: Nearest) -> _Chosen:
    """The load at which intervals stay within limits on longer streams of the search; logarithms of loads beyond the
    largest are not chosen, and the first below the least is.

    Streams too short to tell whether values are kept that lie within their limits are lengthened once.
    """
    step, steepness, before, fewest = 0.0, STEEPNESS, (0.0, -math.inf), SURE_REQUESTS
    low, high = -math.inf, math.inf  # the largest step with room, the least without
    for _ in range(MOST_CHOICES):
        load = scale * math.exp(step)
        judged = [
            _judged(trials, variants, each, load, SEARCH_SEED, fewest, nearest.get(variant))
            for variant, each in enumerate(variants.worst_first())
        ]
        nearest.update(enumerate(judged))
        room = min(room_left(judgement, CHOOSING_ERROR) for judgement in judged)
        short = fewest < LONG_REQUESTS and all(_requests(judgement) <= ENOUGH * fewest for judgement in judged)
        if room == -math.inf and short and all(map(keeps, judged)):
            fewest = LONG_REQUESTS
            continue
        low, high = (step, high) if room >= 0.0 else (low, step)
        following = step - UNTOLD
        if room > -math.inf:
            if before[1] > -math.inf and step != before[0]:
                steepness = min(max((before[1] - room) / (step - before[0]), STEEP[0]), STEEP[1])
            before = step, room
            following = step + min(max(room / steepness, -DOWN), UP) - FURTHER
        if -math.inf < low < high < math.inf:
            middle = 0.5 * (low + high)
            following = middle if high - low > CLOSE else min(max(following, low), middle)
        following = min(following, within[1])
        near, step = room > -math.inf and abs(following - step) <= NEAR, following
        if near or step < within[0]:
            break
    return _Chosen(step, steepness, fewest, low)


def _requests(judgement: Judgement) -> int:
    """Of all streams together."""
    return sum(len(run.requests) for run in judgement.runs)


def room_left(judgement: Judgement, error: float) -> float:
    """Share of its limit from the end of an interval that errs so often, the least; -inf where it does not tell.

    Of a judgement that leaves limits open, it is that of the limits which it tells to be broken.
    """
    rooms = [_room(limit, error) / limit.limit for limit in judgement.limits]
    if judgement.saturated:
        return -math.inf
    if judgement.told:
        return min(rooms, default=math.inf)
    pairs = zip(judgement.limits, rooms, strict=True)
    return min((room for limit, room in pairs if limit.long_enough and room < 0.0), default=-math.inf)


def kept_surely(judgement: Judgement, error: float) -> bool:
    """Whether the interval of every limit that errs so often lies within it, on streams that are long enough."""
    return keeps(judgement) and room_left(judgement, error) >= 0.0


def _room(limit: JudgedLimit, error: float) -> float:
    """From the end of the interval to the limit; intervals of other confidence are as much wider as a Gaussian's."""
    estimate = limit.estimate
    wider = NormalDist().inv_cdf(1.0 - error / 2.0) / NormalDist().inv_cdf(1.0 - ERROR / 2.0)
    if limit.time == "attainment":
        return estimate.value - (estimate.value - estimate.low) * wider - limit.limit
    return limit.limit - estimate.value - (estimate.high - estimate.value) * wider
