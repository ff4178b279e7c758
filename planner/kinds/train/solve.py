"""Solves a training problem: search, then a plan with a certificate."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from planner.errors import Stopped
from planner.kinds.train.choice import allowed_value, chosen, far_of, left_of, measured_jobs
from planner.kinds.train.decision import TrainDecision
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


def solve(resolved: Resolved, limits: Limits) -> Envelope:
    """The fastest plan, or one not told from it whose like was measured, with what is proven over all axes.

    Raises PlannerError for a problem that no training plan can be made for, Infeasible where no combination of the axes
    is legal or fits in memory, and Stopped where the time ran out before any plan was found.
    """
    jobs, started_s = jobs_of(resolved), time.monotonic()
    require_plain(jobs)
    job, result = jobs[0], best_plan(jobs, limits)
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
    """The fastest plan whose like was measured, where its prediction is not told from the fastest of all.

    `left` are the limits with the time that is left.
    """
    best = result.best
    if best is None or jobs[0].options.choice == "fastest" or not far_of(best):
        return result
    most = cutoff = allowed_value(best, result.decided_value)
    inside = []
    for some in measured_jobs(jobs, result):
        own = best_plan(some, left(), float("inf") if result.compared else cutoff)
        inside.append(Inside(some[0], best_with_decided(some, own, left)))
        cutoff = min(cutoff, own.value or cutoff)
    return chosen(result, inside, most)


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
