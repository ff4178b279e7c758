"""Training: parallelism, pipeline layout, recomputation and schedule of one training job."""

from planner.kinds.registry import Kind
from planner.kinds.train.decision import TrainDecision, TrainOptions
from planner.plan.findings import Finding
from planner.plan.schema import Decision, Envelope


def _check(envelope: Envelope, decision: Decision) -> list[Finding]:
    from planner.kinds.train.check import check

    assert isinstance(decision, TrainDecision)
    return check(envelope, decision)


KIND = Kind(
    name="train",
    purpose="parallelism, pipeline layout, recomputation and schedule of a training job",
    options=TrainOptions,
    decision=TrainDecision,
    check=_check,
)
