"""Solves a training problem: search, then a plan with a certificate."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from planner.errors import Stopped
from planner.kinds.train.choice import (
    allowed_value,
    far_of,
    gone_on,
    half_of,
    left_of,
    measured_jobs,
    preferred,
    roomy_jobs,
    run_out,
    wants_room,
)
from planner.kinds.train.decision import TrainDecision
from planner.kinds.train.figures import ROOM_COSTS
from planner.kinds.train.job import TrainJob, jobs_of
from planner.kinds.train.plan.decode import decode
from planner.kinds.train.pools.weigh import Searches, searches_of_uses
from planner.kinds.train.search.compared import best_with_decided
from planner.kinds.train.search.conflicts import explain
from planner.kinds.train.search.layerwise import plan_layers, require_dense
from planner.kinds.train.search.one_pool import OnePoolSearch
from planner.kinds.train.search.search import Inside, SearchResult
from planner.kinds.train.split.room import require_room
from planner.kinds.train.split.weigh import searches_of_modules
from planner.kinds.train.whole_run.at_scale import with_checkpoints
from planner.kinds.train.whole_run.lengths import with_lengths
from planner.kinds.train.whole_run.on_racks import no_room, require_plain, with_racks
from planner.kinds.train.whole_run.ramp import with_ramp
from planner.kinds.train.whole_run.unlike import with_unlike
from planner.plan.schema import Envelope
from planner.problem.resolve import Resolved
from planner.progress import Limits

POOLS_S = 60.0
"""Of all searches over more than `MOST_PROVEN` pools where no time limit is given: hundreds of GPUs in each of three
pools have millions of combinations, whose proof takes minutes."""
MOST_PROVEN = 2
LAST_SHARE = 1 / 16
"""Of the time limit: when so little is left, the search takes it all."""


def solve(resolved: Resolved, limits: Limits) -> Envelope:
    """The fastest plan, or one not told from it whose like was measured or that leaves more room in memory, with what
    is proven over all axes.

    Raises PlannerError for a problem that no training plan can be made for, Infeasible where no combination of the axes
    is legal or fits in memory, and Stopped where the time ran out before any plan was found.
    """
    jobs, started_s = jobs_of(resolved), time.monotonic()
    require_plain(jobs)
    if len(jobs) > MOST_PROVEN and limits.time_limit_s is None:
        limits = replace(limits, time_limit_s=POOLS_S)
    job, result = jobs[0], _best_in_time(jobs, limits, started_s)
    if result.best is None:
        if result.stop_reason != "finished":
            raise Stopped(result.stop_reason, bound=result.bound)
        raise no_room(job) if result.tally.not_on_racks and not result.tally.unfit else explain(job, result)
    envelope = with_ramp(with_lengths(decode(job, result), result.best), result.best)
    envelope = with_unlike(envelope, result.best)
    decision = TrainDecision.model_validate(envelope.decision)
    return with_racks(with_checkpoints(envelope, decision), result.best)


def _best_in_time(jobs: Sequence[TrainJob], limits: Limits, started_s: float) -> SearchResult:
    """The plan of choice, from a search that goes on until it is finished or the time since `started_s` is over.

    Each round takes half of what is left, and leaves the other half to choose with where its best plan is a new one;
    the last takes all.
    """
    left, limit_s = partial(left_of, limits, started_s), limits.time_limit_s
    at_once = limit_s is None or jobs[0].options.choice == "fastest"
    searches = searches_of(jobs, limits)
    planted_s = time.monotonic() - started_s
    whole = chosen = None
    while True:
        now = limits if limit_s is None else left()
        last = at_once or run_out(now, LAST_SHARE * (limit_s or 0.0))
        result = _with_mixes(jobs, searches.proven(now if last else half_of(now)))
        ended = last or result.stop_reason != "time_limit" or result.mixes is not None
        if chosen is None or whole is None or whole.best is not result.best:
            before = () if chosen is None else chosen.inside
            chosen = cautious(jobs, best_with_decided(jobs, result, left), left, planted_s, before)
        else:
            chosen = gone_on(chosen, result)
        if ended:
            return chosen
        whole = result


def cautious(
    jobs: Sequence[TrainJob],
    result: SearchResult,
    left: Callable[[], Limits],
    planted_s: float,
    before: Sequence[Inside] = (),
) -> SearchResult:
    """The fastest plan whose like was measured, where its prediction is not told from the fastest of all, and one with
    room in memory where that costs little.

    `left` are the limits with the time that is left; `planted_s` seconds bounded all uses of the pools. `before` is
    what parts of the space came to when the best of all was another, which counts where they come to nothing now.
    """
    if result.best is None or jobs[0].options.choice == "fastest":
        return result
    if far_of(result.best):
        most = allowed_value(result.best, result.decided_value)
        parts = _searched(measured_jobs(jobs, result), result, most, left, planted_s)
        result = preferred(result, _or_before(parts, before), most)
    assert result.best is not None
    if wants_room(result.best):
        most = result.decided_value * (1.0 + ROOM_COSTS)
        among = roomy_jobs([part.jobs for part in result.inside] or measured_jobs(jobs, result), result.best)
        roomy = [part for part in before if part.result.best is not None and not wants_room(part.result.best)]
        parts = _searched(among, result, most, left, planted_s)
        result = preferred(result, _or_before(parts, roomy), most)
    return result


def _or_before(parts: Sequence[Inside], before: Sequence[Inside]) -> Sequence[Inside]:
    """What was searched, or what came before where that has no plan."""
    return before if all(part.result.best is None for part in parts) else parts


def _searched(
    parts: Iterable[Sequence[TrainJob]],
    result: SearchResult,
    most: float,
    left: Callable[[], Limits],
    planted_s: float,
) -> list[Inside]:
    """The best plans up to `most` of parts of the space that `result` is of; the rest of them by what comes first.

    None of any part where no time is left to bound all uses of several pools, which took `planted_s`.
    """
    inside: list[Inside] = []
    for jobs in parts:
        limits = left()
        if len(jobs) > 1 and run_out(limits, planted_s):
            return []
        own = best_plan(jobs, half_of(limits), float("inf") if result.compared else most)
        inside.append(Inside(tuple(jobs), best_with_decided(jobs, own, left)))
        most = min(most, own.value or most)
    return inside


def best_plan(jobs: Sequence[TrainJob], limits: Limits, value: float = float("inf")) -> SearchResult:
    """The best plan of all that the job allows on its pools, better than `value`."""
    started_s = time.monotonic()
    searches = searches_of(jobs, limits, value)
    return _with_mixes(jobs, searches.proven(left_of(limits, started_s)), value)


def searches_of(jobs: Sequence[TrainJob], limits: Limits, value: float = float("inf")) -> Searches:
    """Searches of all that the job allows on its pools, for what is better than `value`."""
    if len(jobs) > 1:
        return searches_of_uses(jobs, limits, value)
    job = jobs[0]
    if job.options.search.layerwise:
        require_dense(job)
    if job.options.samples:
        require_room(job, apart="colocated" not in job.options.search.modules)
    if job.options.search.modules != ("colocated",):
        return searches_of_modules(job, limits, value)
    return Searches([("", OnePoolSearch(job, limits, value))])


def _with_mixes(jobs: Sequence[TrainJob], result: SearchResult, value: float = float("inf")) -> SearchResult:
    """The result, or the best plan whose layers have strategies of their own where these may differ."""
    search = jobs[0].options.search
    return _or_mixed(jobs[0], result, value) if search.layerwise and search.modules == ("colocated",) else result


def _or_mixed(job: TrainJob, uniform: SearchResult, value: float) -> SearchResult:
    """The best plan whose layers have strategies of their own where it beats what was found; mixes use all GPUs."""
    gpus = job.num_gpus if job.per_gpu else 1
    mixes = plan_layers(job, min(value if uniform.value is None else uniform.value, value) / gpus)
    bound = min(uniform.bound, mixes.bound * gpus)
    if mixes.best is None:
        return replace(uniform, bound=bound, mixes=mixes)
    return replace(
        uniform,
        best=mixes.best,
        value=mixes.value * gpus,
        bound=bound,
        second=uniform.best or uniform.second,
        mixes=mixes,
    )
