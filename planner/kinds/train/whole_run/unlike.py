"""What a training plan decides on unlike samples and documents beside its layout, where the problem asks for it."""

from planner.kinds.train.decision import TrainDecision
from planner.kinds.train.evaluation.evaluation import Evaluation
from planner.kinds.train.whole_run.attention_ranges import with_core_attention
from planner.kinds.train.whole_run.head_groups import with_sparse_heads
from planner.kinds.train.whole_run.pass_schedule import with_schedule
from planner.kinds.train.whole_run.sample_order import with_sample_order
from planner.kinds.train.whole_run.sequence_degrees import with_degrees
from planner.plan.schema import Envelope


def with_unlike(envelope: Envelope, best: Evaluation, given: TrainDecision | None = None) -> Envelope:
    """The plan with all of them; of `given` decisions the figures are derived again."""
    envelope = with_sample_order(envelope, best, None if given is None else given.sample_order)
    envelope = with_degrees(envelope, best, None if given is None else given.sequence_degrees)
    envelope = with_core_attention(envelope, best, None if given is None else given.core_attention)
    envelope = with_sparse_heads(envelope, best, None if given is None else given.sparse_heads)
    return with_schedule(envelope, best, None if given is None else given.modality_schedule)
