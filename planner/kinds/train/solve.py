"""Solves a training problem: search, then a plan with a certificate."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from planner.errors import Stopped
from planner.kinds.train.choice import (
    allowed_value,
    far_of,
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
from planner.kinds.train.pools.weigh import best_use
from planner.kinds.train.search.compared import best_with_decided
from planner.kinds.train.search.conflicts import explain
from planner.kinds.train.search.layerwise import plan_layers, require_dense
from planner.kinds.train.search.one_pool import OnePoolSearch
from planner.kinds.train.search.search import Inside, SearchResult
from planner.kinds.train.split.room import require_room
from planner.kinds.train.split.weigh import best_of_modules
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
    first = limits if jobs[0].options.choice == "fastest" else half_of(limits)
    job, result = jobs[0], best_plan(jobs, first)
    if result.best is None:
        if result.stop_reason != "finished":
            raise Stopped(result.stop_reason, bound=result.bound)
        raise no_room(job) if result.tally.not_on_racks and not result.tally.unfit else explain(job, result)
    left = partial(left_of, limits, started_s)
    result = _cautious(jobs, best_with_decided(jobs, result, left), left)
    assert result.best is not None
    envelope = with_ramp(with_lengths(decode(job, result), result.best), result.best)
    envelope = with_unlike(envelope, result.best)
    decision = TrainDecision.model_validate(envelope.decision)
    return with_racks(with_checkpoints(envelope, decision), result.best)


def _cautious(jobs: Sequence[TrainJob], result: SearchResult, left: Callable[[], Limits]) -> SearchResult:
    """The fastest plan whose like was measured, where its prediction is not told from the fastest of all, and one with
    room in memory where that costs little.

    `left` are the limits with the time that is left.
    """
    if result.best is None or jobs[0].options.choice == "fastest":
        return result
    if far_of(result.best):
        most = allowed_value(result.best, result.decided_value)
        parts = _searched(measured_jobs(jobs, result), result, most, left)
        result = preferred(result, parts, most)
    assert result.best is not None
    if wants_room(result.best):
        most = result.decided_value * (1.0 + ROOM_COSTS)
        among = roomy_jobs([part.jobs for part in result.inside] or measured_jobs(jobs, result), result.best)
        result = preferred(result, _searched(among, result, most, left), most)
    return result


def _searched(
    parts: Iterable[Sequence[TrainJob]], result: SearchResult, most: float, left: Callable[[], Limits]
) -> list[Inside]:
    """The best plans up to `most` of parts of the space that `result` is of; the rest of them by what comes first.

    None of any part where no time is left to bound all uses of several pools, which takes seconds.
    """
    inside: list[Inside] = []
    for jobs in parts:
        limits = left()
        if len(jobs) > 1 and run_out(limits):
            return []
        own = best_plan(jobs, half_of(limits), float("inf") if result.compared else most)
        inside.append(Inside(tuple(jobs), best_with_decided(jobs, own, left)))
        most = min(most, own.value or most)
    return inside


def best_plan(jobs: Sequence[TrainJob], limits: Limits, value: float = float("inf")) -> SearchResult:
    """The best plan of all that the job allows on its pools, better than `value`."""
    if len(jobs) > 1:
        return best_use(jobs, limits, value)
    job = jobs[0]
    layerwise = job.options.search.layerwise
    if layerwise:
        require_dense(job)
    if job.options.samples:
        require_room(job, apart="colocated" not in job.options.search.modules)
    if job.options.search.modules != ("colocated",):
        return best_of_modules(job, limits, value)
    result = OnePoolSearch(job, limits, value).run()
    return _or_mixed(job, result, value) if layerwise else result


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
