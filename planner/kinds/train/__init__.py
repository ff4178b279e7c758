"""Training: parallelism, pipeline layout, recomputation and schedule of one training job."""

from planner.kinds.registry import Kind
from planner.kinds.train.decision import TrainDecision, TrainOptions
from planner.plan.findings import Finding
from planner.plan.schema import Decision, Envelope
from planner.problem.resolve import Resolved
from planner.progress import Limits


def _check(envelope: Envelope, decision: Decision) -> list[Finding]:
    from planner.kinds.train.check import check

    assert isinstance(decision, TrainDecision)
    return check(envelope, decision)


def _solve(resolved: Resolved, limits: Limits) -> Envelope:
    from planner.kinds.train.solve import solve

    return solve(resolved, limits)


KIND = Kind(
    name="train",
    purpose="parallelism, pipeline layout, recomputation and schedule of a training job",
    options=TrainOptions,
    decision=TrainDecision,
    check=_check,
    solve=_solve,
    proofs=("branch_and_bound",),
)
