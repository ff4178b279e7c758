"""A training problem to a certified plan."""

from planner.infeasible import Stopped
from planner.kinds.train.at_scale import with_checkpoints
from planner.kinds.train.conflicts import explain
from planner.kinds.train.decision import TrainDecision
from planner.kinds.train.decode import decode
from planner.kinds.train.job import job_of
from planner.kinds.train.search import Search
from planner.plan.schema import Envelope
from planner.problem.resolve import Resolved
from planner.progress import Limits


def solve(resolved: Resolved, limits: Limits) -> Envelope:
    """The fastest plan, proven over every axis of its certificate.

    Raises PlannerError for a problem that no training plan can be made for, Infeasible where no combination of the axes
    is legal or fits in memory, and Stopped where the time ran out before any plan was found.
    """
    job = job_of(resolved)
    found = Search(job, limits).run()
    if found.best is None:
        if found.stop_reason != "finished":
            raise Stopped(found.stop_reason, bound=found.bound)
        raise explain(job, found)
    envelope = decode(job, found)
    return with_checkpoints(envelope, TrainDecision.model_validate(envelope.decision))
