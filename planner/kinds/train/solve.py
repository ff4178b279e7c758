"""A training problem to a certified plan."""

from collections.abc import Sequence
from dataclasses import replace

from planner.errors import Stopped
from planner.kinds.train.decision import TrainDecision
from planner.kinds.train.job import Job, jobs_of
from planner.kinds.train.plan.decode import decode
from planner.kinds.train.pools.weigh import best_use
from planner.kinds.train.search.conflicts import explain
from planner.kinds.train.search.layerwise import plan_layers, require_dense
from planner.kinds.train.search.search import Found, Search
from planner.kinds.train.whole_run.at_scale import with_checkpoints
from planner.kinds.train.whole_run.lengths import with_lengths
from planner.kinds.train.whole_run.ramp import with_ramp
from planner.plan.schema import Envelope
from planner.problem.resolve import Resolved
from planner.progress import Limits


def solve(resolved: Resolved, limits: Limits) -> Envelope:
    """The fastest plan, proven over every axis of its certificate.

    Raises PlannerError for a problem that no training plan can be made for, Infeasible where no combination of the axes
    is legal or fits in memory, and Stopped where the time ran out before any plan was found.
    """
    jobs = jobs_of(resolved)
    job, found = jobs[0], best_plan(jobs, limits)
    if found.best is None:
        if found.stop_reason != "finished":
            raise Stopped(found.stop_reason, bound=found.bound)
        raise explain(job, found)
    envelope = with_ramp(with_lengths(decode(job, found), found.best), found.best)
    return with_checkpoints(envelope, TrainDecision.model_validate(envelope.decision))


def best_plan(jobs: Sequence[Job], limits: Limits, value: float = float("inf")) -> Found:
    """The best plan of all that the job allows on its pools, better than `value`."""
    if len(jobs) > 1:
        return best_use(jobs, limits, value)
    job = jobs[0]
    layerwise = job.options.search.layerwise
    if layerwise:
        require_dense(job)
    found = Search(job, limits, value).run()
    return _or_mixed(job, found, value) if layerwise else found


def _or_mixed(job: Job, found: Found, value: float) -> Found:
    """The best plan whose layers have strategies of their own where it beats what was found; mixes use all GPUs."""
    gpus = job.num_gpus if job.per_gpu else 1
    mixes = plan_layers(job, min(value if found.value is None else found.value, value) / gpus)
    bound = min(found.bound, mixes.bound * gpus)
    if mixes.best is None:
        return replace(found, bound=bound, mixes=mixes)
    return replace(
        found, best=mixes.best, value=mixes.value * gpus, bound=bound, second=found.best or found.second, mixes=mixes
    )
