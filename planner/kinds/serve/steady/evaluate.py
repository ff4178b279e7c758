"""Evaluates points for one workload: rates, TTFT, TPOT, and the rule that drops each point; arrays [N]."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from planner.arrays import Bools, Floats, Indices
from planner.costs.operators.forward import ranks_in_step
from planner.costs.rates.step import StepTime
from planner.kinds.serve.steady.attained import Pace
from planner.kinds.serve.steady.demand import Target, TransferPath
from planner.kinds.serve.steady.points import Points, PoolCosts, Tally
from planner.kinds.serve.steady.steps.first_tokens import Engines, Variability, first_tokens
from planner.kinds.serve.steady.steps.formulas import prefill_alone
from planner.kinds.serve.steady.steps.mixed import mixed_steps, paced_decode
from planner.kinds.serve.steady.steps.pipelines import Bubbles, Holds, prefill_in_stages
from planner.kinds.serve.steady.time_limits import ATTAINMENT, MEAN, Queue, TimeLimit, strictest_s
from planner.models.architecture import Architecture
from planner.solvers.stochastic.gap_averages import SteadySteps
from planner.solvers.stochastic.routed_queues import Routing
from planner.solvers.stochastic.token_gaps import StepPrompts, TokenGaps

TOLERANCE = 1e-9  # relative, of limits
FILLED = 256.0  # parts of the fullest load that a colocated role may have


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Points with their step times for one target, before any limit; 0 where a role has no such time."""

    service_s: Floats  # time to first token without waiting
    queue_s: Floats  # time that one request occupies the prefill of an attention rank
    stretch_s: Floats  # time that prefilling one request adds to the decode steps of its rank
    prefill_steps: Floats  # of its rank that prefilling one request takes
    tpot_s: Floats  # at the full batch
    step: StepTime
    bubbles: Bubbles | None = None  # of prefill in stages
    holds: Holds | None = None  # of batches in stages that prefill and decode
    engines: Engines | None = None  # of roles that prefill and decode
    decoding: SteadySteps | None = None  # at the full batch, of roles that decode
    varied_s: Floats | None = None  # of prefill alone, what grows with a prompt; 0 in stages
    margin: Floats | None = None  # by which limits on TPOT, gaps and whole requests are divided, beyond the target's

    def bound_s(self, limit_s: float, rows: Indices | slice = slice(None)) -> Floats | float:
        """The longest time that keeps such a limit, of some points."""
        longest_s = limit_s * (1.0 + TOLERANCE)
        return longest_s if self.margin is None else longest_s / self.margin[rows]


@dataclass(frozen=True, slots=True)
class LimitedRates:
    """What points do for one target used up to its limits; `good` keeps all of them."""

    rate_per_s: Floats  # of the whole instance
    utilisation: Floats  # of its prefill
    stay_s: Floats  # mean time that a request stays
    good: Bools


def time_points(function: str, pool_costs: PoolCosts, target: Target, points: Points) -> StepTimes:
    """Step times of every point for one target."""
    context, none = np.full(len(points), target.context), np.zeros(len(points))
    costs = replace(pool_costs.costs.of_role(function), encoding=target.encoding)
    isl, engine = np.full(len(points), target.prefilled_tokens), costs.engine
    cached = target.before_tokens
    if function == "prefill":
        plain = prefill_alone(costs, points.shards, isl, points.chunk, points.drafts, cached=cached)
        prefill, bubbles = prefill_in_stages(costs, points.shards, isl, points.chunk, plain, target.service_cv2, cached)
        before = engine.apart_s(isl + cached)
        varied_s = np.where(points.shards.pp > 1.0, 0.0, prefill.queue_s)
        return StepTimes(
            prefill.latency_s + before, prefill.queue_s, none, none, none, prefill.step, bubbles, varied_s=varied_s
        )
    yielded = costs.tokens_per_step(points.drafts)
    yielded_cv2 = costs.tokens_per_step_cv2(points.drafts)
    if function == "decode":
        decode, pace_s = paced_decode(costs, points.shards, points.batch, context, points.drafts)
        recalled_s = target.recalled_s(decode)
        one, joining = none + 1.0, target.joining_steps
        full = SteadySteps(pace_s, pace_s, points.batch, one, yielded, yielded_cv2, recalled_s, joining)
        return StepTimes(none, none, none, none, pace_s / yielded, decode, decoding=full)
    mixed = mixed_steps(
        costs,
        points.shards,
        points.shape,
        points.batch,
        points.chunk,
        points.drafts,
        isl,
        context,
        target.osl / yielded,
        length_cv2=target.service_cv2,
        cached=cached,
    )
    engines, ranks = mixed.engines, ranks_in_step(costs.arch, points.shards.dp)
    recalled_s = target.recalled_s(mixed.decode)
    return StepTimes(
        engines.own_s(target.service_cv2),
        mixed.prefill.queue_s,
        mixed.prefill.stretch_s,
        mixed.prefill.steps,
        engines.step_s / yielded,
        mixed.prefill.step,
        decoding=SteadySteps(engines.pace_s, engines.step_s, points.batch, ranks, yielded, yielded_cv2, recalled_s),
        holds=mixed.holds,
        engines=engines,
    )


def judge_decode(
    target: Target, points: Points, fits: Bools, timed: StepTimes, occupied: float, tally: Tally
) -> LimitedRates:
    """Decode roles: the time per output token at the full batch, of which requests fill a share on average."""
    fast = fits & _fast(target.tpot_limits, target, timed)
    good = fast & _steady(target, timed)
    tally.drop("slo.tpot", int(np.sum(fits & ~fast)))
    tally.drop("slo.itl", int(np.sum(fast & ~good)))
    rate = occupied * points.batch * points.shards.dp / (target.osl * timed.tpot_s)
    return LimitedRates(rate, np.zeros(len(points)), (target.osl - 1.0) * timed.tpot_s, good)


def _fast(limits: Sequence[TimeLimit], target: Target, timed: StepTimes) -> Bools:
    """Whether the full batch keeps `limits` on the time per output token [N]: means, and shares of requests."""
    fast = np.ones(len(timed.tpot_s), dtype=np.bool_)
    for limit in limits:
        if limit.quantile is None:
            fast &= timed.tpot_s <= timed.bound_s(limit.limit_s)
            continue
        rows = np.flatnonzero(fast)
        within = _full_pace(target, timed, rows).share_within(timed.bound_s(limit.limit_s, rows))
        fast[rows] = within >= limit.quantile - TOLERANCE
    return fast


def _paced(target: Target, timed: StepTimes, rows: Indices) -> Floats:
    """The share of requests at the full batch, of some points, that keep limits on their time per output token."""
    bound_s = strictest_s(target.tpot_limits)
    if target.attained_share <= 0.0 or not np.isfinite(bound_s):
        return np.ones(len(rows))
    return _full_pace(target, timed, rows).share_within(timed.bound_s(bound_s, rows))


def _full_pace(target: Target, timed: StepTimes, rows: Indices) -> Pace:
    """How the time per output token of requests spreads at the full batch, of some points."""
    assert timed.decoding is not None, "roles that decode have steps"
    return Pace((timed.decoding.take(rows).at_full_batch(target.answers),), target.answers)


def _steady(target: Target, timed: StepTimes) -> Bools:
    """Whether the full batch keeps every limit on the gaps between tokens [N]."""
    steady = np.ones(len(timed.tpot_s), dtype=np.bool_)
    if not target.itl_limits:
        return steady
    assert timed.decoding is not None, "roles that decode have steps"
    gaps = gaps_of(target, timed.decoding, timed.prefill_steps, timed.engines)
    for limit in target.itl_limits:
        gap_s = gaps.mean_s if limit.quantile is None else gaps.quantile_s(limit.quantile)
        steady &= gap_s <= timed.bound_s(limit.limit_s)
    return steady


def gaps_of(target: Target, steps: SteadySteps, prefill_steps: Floats, engines: Engines | None = None) -> TokenGaps:
    """Gaps between the tokens of a workload in steady steps [N]; with prompts in them those of `engines`."""
    made = np.maximum(target.osl / steps.yielded, 1.0)
    later = np.maximum((target.answers.mean_tokens - 1.0) / steps.yielded, 1.0)
    prompts = StepPrompts.of_batch(steps.sequences, made, prefill_steps, steps.batches, target.service_cv2)
    most_s = None
    if engines is not None:
        room = engines.room + np.maximum(engines.places - steps.sequences, 0.0) * engines.sequence_room
        most_s = room * engines.prompt_s * steps.batches
    return TokenGaps.of_steps(steps.pace_s, steps.step_s, prompts, 1.0 / later, steps.joining, most_s)


def judge_prefill(
    target: Target,
    points: Points,
    fits: Bools,
    timed: StepTimes,
    route: TransferPath,
    most_busy: float,
    tally: Tally,
    *,
    servers: Floats | None = None,
    routing: Routing = Routing.POWER_OF_TWO,
) -> LimitedRates:
    """Prefill roles: as busy as every limit on the wait allows, the transfer of the cache included in the time.

    A router sends the requests to `servers` queues [N] of a point (`shared_queues`); without, every queue is alone.
    """
    servers = np.ones(len(points)) if servers is None else servers
    service = timed.service_s + route.transfer_s(target.transfer_bytes, points.shards)
    busy, queues = np.full(len(points), most_busy), _queues_of_points(target, servers, routing)
    for limit in target.ttft_limits:
        if np.isfinite(limit.limit_s):
            room = np.maximum(limit.limit_s - service, 0.0)
            for queue, rows in queues:
                most = limit.utilisation(room[rows], timed.queue_s[rows], queue, *_of_rows(timed, rows))
                busy[rows] = np.minimum(busy[rows], most)
    good = fits & (busy > 0) & _keeps(target.ttft_limits, busy, timed, service, queues)
    tally.drop("slo.ttft", int(np.sum(fits & ~good)))
    rate = busy / np.maximum(timed.queue_s, 1e-12) * points.shards.dp
    return LimitedRates(rate, busy, service + _wait_s(MEAN, busy, timed, queues), good)


def judge_colocated(
    target: Target, points: Points, fits: Bools, timed: StepTimes, most_busy: float, occupied: float, tally: Tally
) -> LimitedRates:
    """Roles that do both: every limit at the full batch, whose prefill must keep up with what it finishes.

    Front ends are no busier than prefill may be.
    """
    assert timed.engines is not None, "roles that do both have engines"
    full = timed.engines.capacity_per_s(target.service_cv2)
    behind = fits & (occupied * full * timed.queue_s > most_busy)
    apart = [limit for limit in target.tpot_limits if limit.statistic != ATTAINMENT]
    slow = fits & ~behind & ~_fast(apart, target, timed)
    uneven = fits & ~behind & ~slow & ~_steady(target, timed)
    slow |= uneven
    filled = np.full(len(points), occupied)
    rows = np.flatnonzero(fits & ~behind & ~slow)
    if np.any(np.isfinite([limit.limit_s for limit in (*target.ttft_limits, *target.latency_limits)])):
        filled[rows] = _filled(target, timed, rows, _paced(target, timed, rows), occupied)
    late = np.zeros(len(points), dtype=np.bool_)
    late[rows] = filled[rows] <= 0.0
    filled = np.minimum(filled, most_busy / np.maximum(timed.engines.front_busy(full), 1e-12))
    times = first_tokens(timed.engines, filled, varied(target), waits_for_places=target.clients is None)
    tally.drop("prefill cannot keep up with the batch", int(np.sum(behind)))
    tally.drop("slo.tpot", int(np.sum(slow & ~uneven)))
    tally.drop("slo.itl", int(np.sum(uneven)))
    tally.drop("slo.ttft" if np.isfinite(target.ttft_limits[-1].limit_s) else "slo.latency", int(np.sum(late)))
    per_rank, good = filled * full, fits & ~behind & ~slow & ~late
    stay_s = times.mean_s + (target.osl - 1.0) * timed.tpot_s
    used = np.minimum(per_rank * timed.queue_s, most_busy)
    return LimitedRates(per_rank * points.shards.dp, used, stay_s, good)


def varied(target: Target) -> Variability:
    """How a workload varies."""
    return Variability(target.arrival_cv2, target.service_cv2, target.answers.cv2)


def _filled(target: Target, timed: StepTimes, members: Indices, paced: Floats, occupied: float) -> Floats:
    """The largest share of the capacity of some points that keeps limits on first tokens and whole requests.

    At most `occupied`. Limits on several times that a share of requests must keep are judged together; `paced` of
    the requests keep those on the time per output token. By halving, to a part in `FILLED`; 0 where none keeps
    them. Closed loops are as full as their clients make them.
    """
    assert timed.engines is not None, "roles that do both have engines"
    engines, places = timed.engines.take(members), target.clients is None
    decoding_s = (target.osl - 1.0) * timed.tpot_s[members]
    longest = [strictest_s(limits) for limits in (target.ttft_limits, target.latency_limits)]

    def kept(rows: Indices, filled: Floats) -> Bools:
        times = first_tokens(engines.take(rows), filled, varied(target), waits_for_places=places)
        keeps = np.ones(len(rows), dtype=np.bool_)
        for limit in target.ttft_limits:
            if np.isfinite(limit.limit_s) and limit.statistic != ATTAINMENT:
                keeps &= times.quantile_s(limit.quantile) <= limit.limit_s * (1.0 + TOLERANCE)
        for limit in target.latency_limits:
            bound_s = timed.bound_s(limit.limit_s, members[rows])
            if limit.quantile is None:
                keeps &= times.mean_s + decoding_s[rows] <= bound_s
            elif limit.statistic != ATTAINMENT:
                pace = _full_pace(target, timed, members[rows])
                within = target.outputs.share_within(times.share_within, pace, bound_s)
                keeps &= within >= limit.quantile - TOLERANCE
        if target.attained_share > 0.0:
            pace = _full_pace(target, timed, members[rows])
            bounds_s = longest[0] * (1.0 + TOLERANCE), timed.bound_s(longest[1], members[rows])
            kept_by = target.outputs.share_keeping(times.share_within, pace, *bounds_s)
            keeps &= paced[rows] * kept_by >= target.attained_share - TOLERANCE
        return keeps

    every = np.arange(len(members))
    most = kept(every, np.full(len(every), occupied))
    if not places:
        return np.where(most, occupied, 0.0)
    rows = every[~most]
    rows = rows[kept(rows, np.full(len(rows), occupied / FILLED))]
    low, high = np.full(len(rows), occupied / FILLED), np.full(len(rows), occupied)
    while len(rows) and np.max(high - low) > occupied / FILLED:
        middle = 0.5 * (low + high)
        within = kept(rows, middle)
        low, high = np.where(within, middle, low), np.where(within, high, middle)
    shares = np.where(most, occupied, 0.0)
    shares[rows] = low
    return shares


RanksQueues: TypeAlias = Sequence[tuple[Queue, Indices]]
"""The queues before prefill, each with the points that have it."""


def shared_queues(arch: Architecture, dp: Floats, pp: Floats, together: int) -> Floats:
    """Queues [N] of `together` instances that share arrivals: their attention ranks, those that step together as one.

    A prompt waits for the step that its rank is in with all others, whichever of them it comes to. Pipelines count
    alone: what their bubbles add is known for streams of their own (`steps.pipelines`).
    """
    return np.where(pp > 1.0, 1.0, together * dp / ranks_in_step(arch, dp))


def _queues_of_points(target: Target, servers: Floats, routing: Routing) -> RanksQueues:
    """Points by the number of queues that share the arrivals."""
    return [
        (Queue(target.arrival_cv2, target.service_cv2, number, routing), np.flatnonzero(servers == number))
        for number in np.unique(servers).tolist()
    ]


def _wait_s(limit: TimeLimit, busy: Floats, timed: StepTimes, queues: RanksQueues) -> Floats:
    """Waits [N] at a statistic."""
    wait_s = np.zeros(len(busy))
    for queue, rows in queues:
        wait_s[rows] = limit.wait_s(busy[rows], timed.queue_s[rows], queue, *_of_rows(timed, rows))
    return wait_s


def _of_rows(timed: StepTimes, rows: Indices) -> tuple[Bubbles | None, Floats | None]:
    """Bubbles and what grows with a prompt, of some points."""
    bubbles = None if timed.bubbles is None else timed.bubbles.take(rows)
    return bubbles, None if timed.varied_s is None else timed.varied_s[rows]


def _keeps(limits: tuple[TimeLimit, ...], busy: Floats, timed: StepTimes, rest_s: Floats, queues: RanksQueues) -> Bools:
    """Whether the wait and `rest_s` together keep every one of `limits`."""
    kept = np.ones(len(busy), dtype=np.bool_)
    for limit in limits:
        if np.isfinite(limit.limit_s):
            kept &= rest_s + _wait_s(limit, busy, timed, queues) <= limit.limit_s * (1.0 + TOLERANCE)
    return kept
