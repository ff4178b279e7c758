"""Plan kind `experts`: expert placement and replication, and the share of tokens that each copy serves."""

from planner.kinds.experts.decision import ExpertsDecision, ExpertsOptions
from planner.kinds.experts.reads import READS
from planner.kinds.registry import Kind

KIND = Kind(
    name="experts",
    purpose="copies, placement and token shares of the experts of a mixture-of-experts model",
    options=ExpertsOptions,
    decision=ExpertsDecision,
    reads=READS,
    proofs=("slots_and_mean",),
    stated=True,
)
