"""Plan kind `serve`: instances, prefill-decode disaggregation or not, parallelism, and placement on nodes."""

from planner.kinds.registry import Kind
from planner.kinds.serve.options import ServeDecision, ServeOptions
from planner.kinds.serve.reads import READS

KIND = Kind(
    name="serve",
    purpose="instances, roles, parallelism and placement for serving under SLOs",
    options=ServeOptions,
    decision=ServeDecision,
    reads=READS,
    moved=True,
    proofs=("optimistic_simulation", "step_prices"),
    searched=("dual_tree",),
    levels={
        "static": {"judged_by": "queueing"},
        "verified": {"judged_by": "verification"},
    },
    tables_unasked=True,
)
