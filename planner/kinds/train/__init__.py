"""Plan kind `train`: parallelism, pipeline layout, recomputation and schedule of one training job."""

from planner.kinds.registry import Kind
from planner.kinds.train.decision import TrainDecision
from planner.kinds.train.options import TrainOptions
from planner.kinds.train.reads import READS

KIND = Kind(
    name="train",
    purpose="parallelism, pipeline layout, recomputation and schedule of a training job",
    options=TrainOptions,
    decision=TrainDecision,
    reads=READS,
    proofs=("branch_and_bound",),
    searched=("branch_and_bound",),
)
